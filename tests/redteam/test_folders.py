"""Submission folders that nobody thought of, through the copy and into the engine: graded or at fault.

Each starts as a fine-tune of the tiny base and is bent in one to three ways. Anything but a load report or
a fault with a hint would be answered as ours: 503 where it must be 422, or worse.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from posttrain.checkpoints.snapshot import SnapshotLimits, take_snapshot
from posttrain.core.engine import Engine, NumericPlan
from posttrain.core.errors import SubmissionFault
from posttrain.core.grading import LoadReport
from posttrain.engines.scripted import ScriptedEngine
from posttrain.testing.tiny import fine_tuned, tiny_model

Bend = Callable[[Path], None]
WEIGHTS = "model.safetensors"
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
"""Copies are synced to the disk, thousands of them here."""
NAMES = st.sampled_from(["model.norm.weight", "model.embed_tokens.weight", "lm_head.weight", "x", ""])
NUMBERS = st.sampled_from([-1, 0, 1, 7, 255, 96, 1 << 31, 1 << 40, 1 << 62, 1 << 64])
VALUES = st.none() | st.booleans() | NUMBERS | st.text(max_size=8) | st.lists(NUMBERS, max_size=3)


def read_header(folder: Path) -> tuple[dict[str, Any], bytes]:
    raw = (folder / WEIGHTS).read_bytes()
    size = int.from_bytes(raw[:8], "little")
    return json.loads(raw[8 : 8 + size]), raw[8 + size :]


def write_header(folder: Path, header: object, data: bytes) -> None:
    text = json.dumps(header).encode()
    (folder / WEIGHTS).write_bytes(len(text).to_bytes(8, "little") + text + data)


def bend_entry(folder: Path, name: str, key: str, value: object) -> None:
    header, data = read_header(folder)
    header.setdefault(name, {"dtype": "BF16", "shape": [1], "data_offsets": [0, 2]})[key] = value
    write_header(folder, header, data)


def drop_tensor(folder: Path, name: str) -> None:
    header, data = read_header(folder)
    header.pop(name, None)
    write_header(folder, header, data)


def rename_tensors(folder: Path, prefix: str) -> None:
    header, data = read_header(folder)
    write_header(folder, {prefix + name: entry for name, entry in header.items()}, data)


def replace_header(folder: Path, header: object) -> None:
    write_header(folder, header, read_header(folder)[1])


def claim_length(folder: Path, length: int) -> None:
    path = folder / WEIGHTS
    path.write_bytes((length % (1 << 64)).to_bytes(8, "little") + path.read_bytes()[8:])


def cut(folder: Path, keep: float) -> None:
    path = folder / WEIGHTS
    raw = path.read_bytes()
    path.write_bytes(raw[: int(len(raw) * keep)])


def scribble(folder: Path, place: float, data: bytes) -> None:
    with (folder / WEIGHTS).open("r+b") as file:
        file.seek(int((folder / WEIGHTS).stat().st_size * place))
        file.write(data)


def bend_config(folder: Path, key: str, value: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))


def put(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text, "utf-8")


PREFIXES = st.sampled_from(["model.", "module.", "base_model.model.", "_orig_mod."])
INDEXES = st.dictionaries(
    st.sampled_from(["weight_map", "metadata"]),
    VALUES
    | st.dictionaries(NAMES, st.sampled_from([WEIGHTS, "../plan.json", "/etc/passwd", "a/b", ""]) | VALUES),
).map(json.dumps)
CONFIG_KEYS = ("model_type", "architectures", "auto_map", "vocab_size", "hidden_size", "dtype")
MORE_KEYS = ("tie_word_embeddings", "num_hidden_layers", "quantization_config")
BENDS: st.SearchStrategy[Bend] = st.one_of(
    st.builds(
        lambda name, key, value: partial(bend_entry, name=name, key=key, value=value),
        NAMES,
        st.sampled_from(["dtype", "shape", "data_offsets", "other"]),
        VALUES | st.sampled_from(["F64", "F8_E4M3", "I8", "BOOL", "U64", "F32"]),
    ),
    NAMES.map(lambda name: partial(drop_tensor, name=name)),
    PREFIXES.map(lambda prefix: partial(rename_tensors, prefix=prefix)),
    VALUES.map(lambda value: partial(replace_header, header=value)),
    NUMBERS.map(lambda number: partial(claim_length, length=number)),
    st.floats(0.0, 1.0).map(lambda share: partial(cut, keep=share)),
    st.builds(
        lambda place, data: partial(scribble, place=place, data=data),
        st.floats(0.0, 1.0),
        st.binary(min_size=1, max_size=64),
    ),
    st.builds(
        lambda key, value: partial(bend_config, key=key, value=value),
        st.sampled_from(CONFIG_KEYS + MORE_KEYS),
        VALUES,
    ),
    st.builds(
        lambda name, text: partial(put, name=name, text=text),
        st.sampled_from(["config.json", "adapter_config.json", "pytorch_model.bin", "tokenizer.json"]),
        st.text(max_size=40),
    ),
    INDEXES.map(lambda text: partial(put, name="model.safetensors.index.json", text=text)),
)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    tiny_model(folder / "base")
    fine_tuned(folder / "base", folder / "good", seed=3)
    return folder


def opened(engine: Engine, name: str, models: Path) -> Engine:
    engine.open(str(models / "base"), NumericPlan(engine=name, dtype="float32"))  # type: ignore[arg-type]
    return engine


def check(engine: Engine, models: Path, bends: list[Bend]) -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY) as place:
        root = Path(place)
        folder = root / "workspace" / "output" / "v1"
        shutil.copytree(models / "good", folder)
        for bend in bends:
            try:
                bend(folder)
            except (ValueError, KeyError, AttributeError, TypeError, OSError):
                continue  # nothing left to bend there
        limits = replace(SnapshotLimits.for_base(models / "base"), settle_s=0.0)
        fault = report = None
        try:
            take_snapshot(root / "workspace", "output/v1", root / "copy", limits=limits)
            report = engine.load(str(root / "copy"))
        except SubmissionFault as found:
            fault = found
        assert isinstance(report, LoadReport) or (fault is not None and fault.reason and fault.hint)


def fuzz(engine: Engine, models: Path, *, examples: int) -> None:
    @given(st.lists(BENDS, min_size=1, max_size=3))
    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))
    def bent(bends: list[Bend]) -> None:
        check(engine, models, bends)

    bent()


def test_any_bent_folder_is_loaded_or_at_fault(models: Path) -> None:
    fuzz(opened(ScriptedEngine(), "scripted", models), models, examples=200)


@pytest.mark.slow
def test_two_thousand_bent_folders_are_loaded_or_at_fault(models: Path) -> None:
    fuzz(opened(ScriptedEngine(), "scripted", models), models, examples=2000)


@pytest.mark.slow
def test_any_bent_folder_is_loaded_or_at_fault_where_tensors_are_read(models: Path) -> None:
    pytest.importorskip("torch")
    from posttrain.engines.transformers_engine import TransformersEngine

    fuzz(opened(TransformersEngine(), "transformers", models), models, examples=2000)
