"""Every checkpoint of the field: the grader's verdict, its repairs, and the doctor's mended copy."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from checkpoint_variants import VARIANTS, Variant, build  # noqa: E402
from posttrain.checkpoints.compare_worker import answer  # noqa: E402
from posttrain.checkpoints.comparing import CompareJob  # noqa: E402
from posttrain.checkpoints.doctor import examine, write_copy  # noqa: E402
from posttrain.checkpoints.snapshot import SnapshotLimits, take_snapshot  # noqa: E402
from posttrain.core.errors import Rejected, SubmissionFault, Unloadable  # noqa: E402
from posttrain.core.grading import LoadReport  # noqa: E402

IDS = [variant.name for variant in VARIANTS]


def grade(world: Any, folder: Path, place: Path) -> LoadReport:
    """As the grader takes it: a copy first, then the tensors."""
    room = SnapshotLimits.for_base(world.base).weight_bytes
    limits = SnapshotLimits(weight_bytes=room, settle_s=0.0)
    take_snapshot(folder.parent, folder.name, place, limits=limits)
    return world.target.load(place)


def check_same(world: Any, model: Any, tokenizer: Any, *, asked: bool) -> None:
    """The healthy checkpoint's answers: `asked` for them, or by what decides them alone."""
    if asked:
        assert world.answers(model, tokenizer) == world.expected
    else:
        assert world.same_state(model, tokenizer)


def check_verdict(variant: Variant, world: Any, place: Path, *, asked: bool = True) -> LoadReport | None:
    folder = build(variant, world.healthy, world.base, place / "made")
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    report, hint = None, "none needed"
    try:
        report = grade(world, folder, place / "taken")
        verdict = "graded"
    except SubmissionFault as fault:
        verdict, hint = "rejected" if isinstance(fault, Rejected) else "unloadable", fault.hint
    assert verdict == variant.verdict
    assert hint
    if report is not None:
        assert bool(report.repairs) == variant.repaired, report.repairs
        if variant.same:
            check_same(world, world.model, world.tokenizer, asked=asked)
    assert before == {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    return report


def check_doctor(variant: Variant, world: Any, place: Path, *, asked: bool = True) -> None:
    folder = build(variant, world.healthy, world.base, place / "made")
    examination = examine(
        folder,
        world.base,
        compare=lambda: answer(CompareJob(folder=str(folder), base=str(world.base))),
    )
    codes = {finding.code for finding in examination.findings}
    assert variant.code is None or variant.code in codes, codes
    assert bool(examination.incurable) != variant.mends, examination.incurable
    mended = place / "mended"
    if not variant.mends:
        with pytest.raises(Unloadable):
            write_copy(examination, mended)
        return
    write_copy(examination, mended)
    assert examine(mended, world.base).faults == ()
    if variant.same:
        model = transformers.AutoModelForCausalLM.from_pretrained(str(mended), dtype=torch.float32).eval()
        tokenizer = transformers.AutoTokenizer.from_pretrained(str(mended))
        check_same(world, model, tokenizer, asked=asked)


@pytest.mark.parametrize("variant", VARIANTS, ids=IDS)
def test_every_variant_gets_its_verdict_and_answers_as_the_healthy_one(
    variant: Variant, tiny_world: Any, tmp_path: Path
) -> None:
    check_verdict(variant, tiny_world, tmp_path)


@pytest.mark.parametrize("variant", VARIANTS, ids=IDS)
def test_the_doctor_finds_it_and_its_copy_answers_as_the_healthy_one(
    variant: Variant, tiny_world: Any, tmp_path: Path
) -> None:
    check_doctor(variant, tiny_world, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS, ids=IDS)
def test_the_default_model_broken_in_every_way(variant: Variant, real_world: Any, tmp_path: Path) -> None:
    places = [tmp_path / "graded", tmp_path / "mended"]
    for place in places:
        place.mkdir()
    report = check_verdict(variant, real_world, places[0], asked=variant.repaired)
    shutil.rmtree(places[0])
    if variant.same and variant.mends:
        check_doctor(variant, real_world, places[1], asked=False)
    shutil.rmtree(places[1])
    repairs = list(report.repairs) if report else []
    print(json.dumps({"variant": variant.name, "verdict": variant.verdict, "repairs": repairs}))


def test_more_than_twenty_five_variants_are_tried() -> None:
    assert len(VARIANTS) >= 25
