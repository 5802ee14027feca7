"""Whose weights are these: copies, siblings, merges and honest fine-tunes."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from honest_checkpoints import HONEST, Workshop, mixed  # noqa: E402
from posttrain.checkpoints.compare_worker import answer  # noqa: E402
from posttrain.checkpoints.comparing import Compared, CompareJob, compare_folders  # noqa: E402
from posttrain.checkpoints.provenance import flags_of, read_siblings, refuse_siblings  # noqa: E402
from posttrain.checkpoints.snapshot import SnapshotLimits, take_snapshot  # noqa: E402
from posttrain.checkpoints.tensors import TensorTarget  # noqa: E402
from posttrain.core.errors import InfrastructureError, Rejected, Unloadable, UsageError  # noqa: E402
from posttrain.core.paths import LabPaths  # noqa: E402
from posttrain.infra.processes import Spawner  # noqa: E402
from posttrain.testing.tiny import fine_tuned, tiny_model  # noqa: E402
from posttrain.training.sft import save_checkpoint  # noqa: E402

BOOLEAN = [(f"not ( {a} and {b} ) is", str(not (a and b))) for a in (True, False) for b in (True, False)] * 4
SUMS = [(f"{a} + {a + 7} =", str(2 * a + 7)) for a in range(20)]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("base") / "m")


@pytest.fixture(scope="module")
def sibling(base: Path) -> Path:
    return fine_tuned(base, base.parent / "sibling", seed=9, scale=0.02)


def compared(folder: Path, base: Path, **siblings: Path) -> Compared:
    """In this process; one test takes the road through a process of its own."""
    job = CompareJob(
        folder=str(folder), base=str(base), siblings={name: str(path) for name, path in siblings.items()}
    )
    return answer(job)


def test_a_process_of_its_own_answers_the_same(base: Path, sibling: Path, tmp_path: Path) -> None:
    with Spawner() as spawner:
        found = compare_folders(
            sibling, base, spawner=spawner, log=tmp_path / "log", siblings={"instruct": sibling}
        )
    assert found == compared(sibling, base, instruct=sibling)
    assert found.provenance.siblings[0].identical


def test_whose_fault_it_is_comes_through(base: Path, tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    with Spawner() as spawner, pytest.raises(Unloadable, match=r"model\.safetensors"):
        compare_folders(tmp_path / "t", base, spawner=spawner, log=tmp_path / "log")
    with Spawner() as spawner, pytest.raises(InfrastructureError, match="base model"):
        compare_folders(base, tmp_path / "none", spawner=spawner, log=tmp_path / "log")


@pytest.mark.parametrize("dtype", ["F32", "BF16", "F16"])
def test_a_copy_in_any_precision_is_a_copy(base: Path, sibling: Path, tmp_path: Path, dtype: Any) -> None:
    copy = fine_tuned(base, tmp_path / "t", scale=0.0, dtype=dtype)
    found = compared(copy, base, instruct=sibling).provenance
    assert found.copy_of_base
    assert found.changed_share == 0.0
    assert flags_of(found) == ()


@pytest.mark.parametrize("dtype", ["F32", "BF16", "F16"])
def test_a_sibling_in_any_precision_is_rejected(
    base: Path, sibling: Path, tmp_path: Path, dtype: Any
) -> None:
    copy = fine_tuned(sibling, tmp_path / "t", scale=0.0, dtype=dtype)
    found = compared(copy, base, instruct=sibling).provenance
    with pytest.raises(Rejected, match=r"is\(instruct\)"):
        refuse_siblings(found)


@pytest.mark.parametrize("share", [0.25, 0.5, 0.75])
def test_a_merge_is_flagged_with_its_share(base: Path, sibling: Path, tmp_path: Path, share: float) -> None:
    found = compared(mixed(base, sibling, tmp_path / "t", share), base, instruct=sibling).provenance
    assert flags_of(found) == ("merge_of:instruct",)
    (delta,) = found.siblings
    assert delta.cosine is not None
    assert delta.cosine > 0.95
    assert delta.coefficient == pytest.approx(share, abs=0.02)
    refuse_siblings(found)


def test_a_fine_tune_of_its_own_is_nothing_but_numbers(base: Path, sibling: Path, tmp_path: Path) -> None:
    own = fine_tuned(base, tmp_path / "t", seed=1, scale=0.02)
    found = compared(own, base, instruct=sibling).provenance
    assert flags_of(found) == ()
    refuse_siblings(found)
    assert abs(found.siblings[0].cosine or 0.0) < 0.1
    assert found.relative_l2 == pytest.approx(0.4, abs=0.3)


def test_distances_are_those_that_torch_computes(base: Path, sibling: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    own = fine_tuned(base, tmp_path / "t", seed=1, scale=0.02, dtype="F32", shards=2)
    found = compared(own, base, other=sibling).provenance
    files = [load_file(path) for path in sorted(own.glob("*.safetensors"))]
    mine = {name: value for file in files for name, value in file.items()}
    one, two = load_file(base / "model.safetensors"), load_file(sibling / "model.safetensors")
    change = torch.cat([(mine[name].double() - one[name].double()).flatten() for name in one])
    towards = torch.cat([(two[name].double() - one[name].double()).flatten() for name in one])
    size = torch.cat([value.double().flatten() for value in one.values()]).norm()
    assert found.relative_l2 == pytest.approx(float(change.norm() / size), rel=1e-5)
    cosine = float(change @ towards / change.norm() / towards.norm())
    assert found.siblings[0].cosine == pytest.approx(cosine, abs=1e-5)


def test_findings_name_tensors_without_sense(base: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    own = fine_tuned(base, tmp_path / "t")
    values = load_file(own / "model.safetensors")
    values["model.norm.weight"][0] = float("nan")
    values["model.layers.1.mlp.up_proj.weight"].zero_()
    save_file(values, own / "model.safetensors", metadata={"format": "pt"})
    found = compared(own, base).findings
    assert found.not_finite == ("model.norm.weight",)
    assert found.zeroed == ("model.layers.1.mlp.up_proj.weight",)


def test_siblings_come_from_the_operators_table(lab: LabPaths) -> None:
    tiny_model(lab.model("org/instruct"))
    elsewhere = tiny_model(lab.home.parent / "elsewhere")
    assert read_siblings(lab, ["org/base"]) == {}
    lab.siblings.write_text(f"org/base:\n- org/instruct\n- {{name: chat, folder: {elsewhere}}}\n")
    found = read_siblings(lab, ["short", "org/base"])
    assert found == {"org/instruct": lab.model("org/instruct"), "chat": elsewhere}
    assert read_siblings(lab, ["org/other"]) == {}


@pytest.mark.parametrize("text", ["- a", "org/base: x", "org/base: [3]", "org/base: [org/gone]", "{"])
def test_a_table_that_cannot_be_read_is_named(lab: LabPaths, text: str) -> None:
    lab.models.mkdir()
    lab.siblings.write_text(text)
    with pytest.raises(UsageError, match=r"siblings\.yaml"):
        read_siblings(lab, ["org/base"])


def check_honest(name: str, shop: Workshop, place: Path, siblings: dict[str, Path]) -> dict[str, Any]:
    """Made, taken by the grader, compared: graded, no flag."""
    if name == "GRPO of TRL" or "TRL" in name:
        pytest.importorskip("trl")
    made = place / "made"
    HONEST[name](shop, made)
    limits = SnapshotLimits(weight_bytes=SnapshotLimits.for_base(shop.base).weight_bytes, settle_s=0.0)
    take_snapshot(place, "made", place / "taken", limits=limits)
    report = TensorTarget(shop.model(), shop.base).load(place / "taken")
    found = compared(place / "taken", shop.base, **siblings).provenance
    assert not report.copy_of_base
    assert not found.copy_of_base
    assert flags_of(found) == (), found.siblings
    refuse_siblings(found)
    return {
        "honest": name,
        "dtype": report.dtype,
        "changed": round(report.changed_share or 0.0, 4),
        "relative_l2": float(f"{found.relative_l2:.3e}"),
        "cosine": {sibling.name: sibling.cosine for sibling in found.siblings},
        "repairs": list(report.repairs),
    }


@pytest.mark.parametrize("name", [name for name in HONEST if "TRL" not in name])
def test_honest_checkpoints_are_graded_and_not_flagged(
    name: str, base: Path, sibling: Path, tmp_path: Path
) -> None:
    check_honest(name, Workshop(base, BOOLEAN), tmp_path, {"instruct": sibling})


def test_at_least_twenty_honest_ways_are_tried() -> None:
    assert len(HONEST) >= 20


# --- the same on the default model


@dataclass
class Real:
    """The default model, rows to learn, and two fine-tunes as siblings: of other rows, of the same task."""

    base: Path
    rows: list[tuple[str, str]]
    siblings: dict[str, Path]


@pytest.fixture(scope="module")
def real(default_model: Any, shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Real:
    place = tmp_path_factory.mktemp("siblings")
    found = json.loads((shared_data / "bbh" / "boolean_expressions.json").read_text("utf-8"))["examples"]
    rows = [(row["input"], row["target"]) for row in found]
    siblings = {}
    for name, learnt in (("other_rows", SUMS), ("same_task", rows[125:])):
        shop = Workshop(default_model.folder, learnt, steps=4, batch=4)
        save_checkpoint(shop.tuned(seed=7), shop.tokenizer, place / name, dtype=torch.bfloat16)
        siblings[name] = place / name
    return Real(default_model.folder, rows[:125], siblings)


@pytest.mark.slow
@pytest.mark.parametrize("name", HONEST)
def test_honest_fine_tunes_of_the_default_model(name: str, real: Real, tmp_path: Path) -> None:
    told = check_honest(name, Workshop(real.base, real.rows, steps=2, batch=4), tmp_path, real.siblings)
    shutil.rmtree(tmp_path)
    print(json.dumps(told))


@pytest.mark.slow
def test_merges_of_the_default_model_and_what_stays_hidden(real: Real, tmp_path: Path) -> None:
    base, other = real.base, real.siblings["other_rows"]
    cases = {f"merge {share}": (share, 0.0) for share in (0.25, 0.5, 0.75)}
    cases |= {f"half merge, noise {noise} of the step": (0.5, noise) for noise in (1.0, 2.0, 4.0)}
    for name, (share, noise) in cases.items():
        folder = mixed(base, other, tmp_path / "m", share, noise=noise)
        found = compared(folder, base, other_rows=other).provenance
        (delta,) = found.siblings
        print(
            json.dumps(
                {
                    "case": name,
                    "cosine": delta.cosine,
                    "coefficient": delta.coefficient,
                    "relative_l2": found.relative_l2,
                    "flags": flags_of(found),
                }
            )
        )
        if share >= 0.5:  # a quarter of so small a step is as small as the rounding of bfloat16
            assert bool(flags_of(found)) == (noise < 1.7)
        shutil.rmtree(folder)
