"""Resources of these tests: a tiny base, a resolver with the lines it said, a hub on the loopback."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from posttrain.core.paths import LabPaths
from posttrain.infra.models import Model, Sources, resolve_model
from posttrain.testing.hub import FakeHub, fake_hub
from posttrain.testing.tiny import tiny_model


@dataclass
class Resolver:
    """`resolve_model` for one lab home."""

    lab: LabPaths
    lines: list[str] = field(default_factory=list)

    def __call__(self, model_id: str, *, sources: Sources | None = None, offline: bool = True) -> Model:
        return resolve_model(
            model_id,
            lab=self.lab,
            sources=sources or Sources(),
            offline=offline,
            progress=self.lines.append,
        )


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A complete tiny model folder."""
    return tiny_model(tmp_path / "given" / "tiny")


@pytest.fixture
def resolve(lab: LabPaths) -> Resolver:
    return Resolver(lab)


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[FakeHub]:
    """A hub with the models org/tiny (two shards) and org/pickles and the data set org/rows."""
    pytest.importorskip("huggingface_hub")
    folder = tmp_path / "hub"
    tiny_model(folder / "tiny", shards=2)
    for extra in ("README.md", "pytorch_model.bin", "optimizer.pt"):
        (folder / "tiny" / extra).write_text("not needed", "utf-8")
    (folder / "pickles").mkdir()
    for name in ("config.json", "pytorch_model.bin"):
        (folder / "pickles" / name).write_text("{}", "utf-8")
    (folder / "rows").mkdir()
    (folder / "rows" / "train.jsonl").write_text('{"question": "1+1", "answer": "2"}\n', "utf-8")
    models = {"org/tiny": folder / "tiny", "org/pickles": folder / "pickles"}
    with fake_hub(models=models, datasets={"org/rows": folder / "rows"}) as running:
        yield running
