"""From acceptance to verdict: numbers, order, equal content, faults, the cap, the end, and a second start."""

from __future__ import annotations

import json
import shutil
import threading
import time
from pathlib import Path

import pytest

from grading_kit import LIMITS, Bench, ScriptedAssessor, bench, checkpoint, write_safetensors
from posttrain.core.errors import InfrastructureError, LedgerError
from posttrain.core.grading import Stage, SubmitRequest, Verdict
from posttrain.grading.book import Accepted
from posttrain.grading.ledger import verify
from posttrain.grading.requests import BadRequest, Closed, TooMany


def _submit(made: Bench, path: str, **asked: object) -> int:
    return made.grader.submit(SubmitRequest(model_path=path, **asked)).submission_id


def _grade_of(made: Bench, path: str, **asked: object):
    return made.grader.submit(SubmitRequest(model_path=path, **asked)).wait(20)


def test_a_submission_is_graded_against_the_baseline(tmp_path: Path) -> None:
    with bench(tmp_path, baseline=90) as made:
        grade = _grade_of(made, made.save("v1", right=120), note="first")
    assert grade.status is Verdict.GRADED
    assert (grade.value, grade.baseline_score) == (60.0, 45.0)
    assert grade.improvement is not None
    assert grade.improvement.value == pytest.approx(15.0)
    assert grade.improvement.method == "bonett-price"
    assert grade.note == "first"


def test_every_number_has_an_accepted_a_copied_and_a_graded_row(tmp_path: Path) -> None:
    with bench(tmp_path) as made:
        _grade_of(made, made.save("v1"))
        _grade_of(made, made.save("v2", right=130))
        assert made.kinds() == ["accepted", "copied", "graded"] * 2
        assert verify(made.paths.ledger, head=made.ledger.head).count == 6


def test_equal_content_gets_a_new_number_and_the_first_verdict(tmp_path: Path) -> None:
    with bench(tmp_path) as made:
        first = _grade_of(made, made.save("v1", right=120))
        second = _grade_of(made, made.save("v2", right=120))
    assert (second.submission_id, second.same_as) == (2, 1)
    assert second.value == first.value
    assert not second.counts
    assert made.assessor.calls == ["1"]


def test_equal_content_after_an_error_is_graded_again(tmp_path: Path) -> None:
    assessor = ScriptedAssessor()
    with bench(tmp_path, assessor=assessor) as made:
        path = made.save("v1", raises="died")
        assert _grade_of(made, path).status is Verdict.ERROR
        again = _grade_of(made, path)
    assert again.same_as is None
    assert assessor.calls == ["1", "2"]


@pytest.mark.parametrize(
    ("raises", "verdict"),
    [
        ("rejected", Verdict.REJECTED),
        ("unloadable", Verdict.UNLOADABLE),
        ("died", Verdict.ERROR),
        ("busy", Verdict.ERROR),
        ("plugin", Verdict.ERROR),
        ("bug", Verdict.ERROR),
    ],
)
def test_what_could_not_be_graded_has_a_verdict_a_reason_and_no_score(
    tmp_path: Path, raises: str, verdict: Verdict
) -> None:
    with bench(tmp_path) as made:
        grade = _grade_of(made, made.save("v1", raises=raises))
        after = _grade_of(made, made.save("v2"))
    assert grade.status is verdict
    assert grade.score is None
    assert grade.improvement is None
    assert grade.error
    assert grade.hint
    assert after.status is Verdict.GRADED


def test_a_copy_of_the_base_improves_by_exactly_nothing(tmp_path: Path) -> None:
    with bench(tmp_path, baseline=90) as made:
        grade = _grade_of(made, made.save("v1", right=90, copy=True))
    assert grade.flags == ("copy_of_base",)
    assert grade.improvement is not None
    assert (grade.improvement.value, grade.improvement.method) == (0.0, "identical")


def test_a_failed_first_attempt_is_told_in_the_ledger(tmp_path: Path) -> None:
    with bench(tmp_path) as made:
        grade = _grade_of(made, made.save("v1", fault="the worker ended with -9"))
        event = next(row for row in made.ledger.rows() if row.kind == "event")
    assert grade.status is Verdict.GRADED
    assert event.data == {
        "event": "grading failed",
        "submission_id": 1,
        "error": "the worker ended with -9",
    }


def test_the_cap_counts_neither_repetitions_nor_our_own_faults(tmp_path: Path) -> None:
    with bench(tmp_path, max_submissions=2) as made:
        _grade_of(made, made.save("v1", right=100))
        _grade_of(made, made.save("same", right=100))
        _grade_of(made, made.save("fault", raises="died"))
        _grade_of(made, made.save("bad", raises="unloadable"))
        with pytest.raises(TooMany) as refused:
            _submit(made, made.save("v5"))
        assert made.grader.total == 4
    assert refused.value.retry_after_s is not None


def test_a_fifth_that_waits_is_told_to_come_back(tmp_path: Path) -> None:
    assessor = ScriptedAssessor(hold=True)
    with bench(tmp_path, assessor=assessor) as made:
        _submit(made, made.save("v0"))
        assert assessor.entered.wait(10)
        for number in range(1, 5):
            _submit(made, made.save(f"v{number}", right=number))
        with pytest.raises(TooMany, match="4 submissions are waiting"):
            _submit(made, made.save("v5", right=5))
        assert made.grader.queue_length == 4
        standing = made.grader.standing(3)
        assert standing is not None
        assert (standing.stage, standing.position) == (Stage.QUEUED, 2)
        assessor.let_go.set()
        made.grader.drain(60)
        assert assessor.calls == ["1", "2", "3", "4", "5"]


def test_the_grade_is_of_what_was_there_at_acceptance(tmp_path: Path) -> None:
    assessor = ScriptedAssessor(hold=True)
    with bench(tmp_path, assessor=assessor) as made:
        path = made.save("v1", right=100)
        ticket = made.grader.submit(SubmitRequest(model_path=path))
        checkpoint(made.paths.workspace.output / "v1", right=200, content=b"other")
        assessor.let_go.set()
        assert ticket.wait(20).value == 50.0


def test_a_broken_folder_gets_a_number_and_costs_no_grading(tmp_path: Path) -> None:
    with bench(tmp_path) as made:
        empty = made.paths.workspace.output / "empty"
        empty.mkdir()
        grade = _grade_of(made, "output/empty")
        assert made.kinds() == ["accepted", "graded"]
    assert grade.status is Verdict.UNLOADABLE
    assert grade.submission_id == 1
    assert made.assessor.calls == []


def test_a_name_that_is_not_unicode_does_no_harm(tmp_path: Path) -> None:
    with bench(tmp_path) as made:
        path = made.save("v1")
        (made.paths.workspace.output / "v1" / "line\nbreak\udcff").write_bytes(b"x")
        grade = _grade_of(made, path)
        pickles = made.paths.workspace.output / "v2"
        pickles.mkdir()
        (pickles / "a\udcff.bin").write_bytes(b"x")
        other = _grade_of(made, "output/v2")
        scores = json.loads(made.paths.workspace.scores.read_text("utf-8"))
    assert grade.load is not None
    assert grade.load.notes == ("not copied: line\\nbreak\\udcff",)
    assert other.status is Verdict.REJECTED
    assert len(scores) == 2


@pytest.mark.parametrize(
    "path",
    [
        "",
        "output/none",
        "../x",
        "output/../../x",
        "/etc",
        "code",
        "data/x",
        "output\0",
        "/",
        "output/../code",
    ],
)
def test_a_path_outside_output_is_refused_without_a_number(tmp_path: Path, path: str) -> None:
    with bench(tmp_path) as made:
        (made.paths.workspace.root / "code").mkdir()
        with pytest.raises((BadRequest, ValueError)):
            _submit(made, path)
        assert made.grader.total == 0


def test_absolute_paths_inside_the_workspace_are_taken(tmp_path: Path) -> None:
    with bench(tmp_path) as made:
        made.save("v1")
        grade = _grade_of(made, str(made.paths.workspace.output / "v1"))
    assert grade.status is Verdict.GRADED


def test_nothing_is_accepted_after_the_deadline_and_what_was_accepted_is_graded(tmp_path: Path) -> None:
    assessor = ScriptedAssessor(hold=True)
    with bench(tmp_path, assessor=assessor) as made:
        ticket = made.grader.submit(SubmitRequest(model_path=made.save("v1")))
        made.budget.left = 0.0
        with pytest.raises(Closed):
            _submit(made, made.save("v2"))
        made.grader.close()
        assessor.let_go.set()
        assert made.grader.drain(60)
        assert ticket.wait(0).status is Verdict.GRADED


def test_stopping_ends_a_grading_at_once_and_leaves_it_open(tmp_path: Path) -> None:
    assessor = ScriptedAssessor(hold=True)
    with bench(tmp_path, assessor=assessor) as made:
        ticket = made.grader.submit(SubmitRequest(model_path=made.save("v1")))
        assert assessor.entered.wait(10)
        begun = time.monotonic()
        made.grader.stop()
        assert time.monotonic() - begun < 2.0
        with pytest.raises(InfrastructureError, match="stopped"):
            ticket.wait(0)
        with pytest.raises(Closed):
            _submit(made, made.save("v2"))
        assert made.kinds() == ["accepted", "copied"]


def test_a_grader_on_an_old_ledger_grades_what_was_left_and_nothing_twice(tmp_path: Path) -> None:
    with bench(tmp_path, assessor=ScriptedAssessor(hold=True)) as made:
        made.assessor.let_go.set()
        _grade_of(made, made.save("v1", right=100))
        made.assessor.let_go.clear()
        _submit(made, made.save("v2", right=110))
        _submit(made, made.save("v3", right=100))
    with bench(tmp_path) as again:
        assert again.grader.drain(60)
        grades = again.grader.grades
        assert [grade.value for grade in grades] == [50.0, 55.0, 50.0]
        assert grades[2].same_as == 1
        assert again.assessor.calls == ["2"]
        assert _grade_of(again, again.save("v4", right=130)).submission_id == 4


def test_a_copy_that_a_death_cut_off_is_an_error_and_its_rest_is_removed(tmp_path: Path) -> None:
    with bench(tmp_path) as made:
        request = SubmitRequest(model_path=made.save("v1"))
        made.ledger.append(
            "accepted",
            Accepted(
                submission_id=1, timestamp="2026-02-11T15:00:00+00:00", relative="output/v1", request=request
            ),
        )
        part = made.paths.submissions / ".1.abcd.part"
        part.mkdir()
        (part / "model.safetensors").write_bytes(b"half")
    with bench(tmp_path) as again:
        grade = again.grader.grades[0]
        assert (grade.status, grade.error) == (Verdict.ERROR, "interrupted while copying")
        assert not part.exists()


def test_a_complete_copy_without_its_row_is_graded(tmp_path: Path) -> None:
    with bench(tmp_path, assessor=ScriptedAssessor(hold=True)) as made:
        _submit(made, made.save("v1", right=150))
    lines = made.paths.ledger.read_bytes().splitlines(keepends=True)
    assert b'"copied"' in lines[1]
    made.paths.ledger.write_bytes(lines[0])
    with bench(tmp_path) as again:
        assert again.grader.drain(60)
        assert again.grader.grades[0].value == 75.0
        assert again.kinds() == ["accepted", "copied", "graded"]


def test_a_copy_that_was_damaged_meanwhile_is_not_graded(tmp_path: Path) -> None:
    with bench(tmp_path, assessor=ScriptedAssessor(hold=True)) as made:
        _submit(made, made.save("v1"))
    checkpoint(made.paths.submission(1), right=200)
    with bench(tmp_path) as again:
        assert again.grader.drain(60)
        assert again.grader.grades[0].status is Verdict.ERROR


def test_only_copies_that_may_be_tested_are_kept(tmp_path: Path) -> None:
    with bench(tmp_path) as made:
        _grade_of(made, made.save("a", right=110))
        best = _grade_of(made, made.save("b", right=150))
        final = _grade_of(made, made.save("c", right=120), final=True)
        _grade_of(made, made.save("d", raises="unloadable"))
        last = _grade_of(made, made.save("e", right=130))
        kept = sorted(path.name for path in made.paths.submissions.iterdir())
        assert kept == ["2", "3", "5"]
        for grade in (best, final, last):
            assert made.grader.copy_of(grade).is_dir()


def test_content_that_comes_again_after_its_copy_was_removed_has_a_copy_again(tmp_path: Path) -> None:
    with bench(tmp_path) as made:
        for name, right in (("a", 110), ("b", 150), ("c", 120)):
            _grade_of(made, made.save(name, right=right))
        again = _grade_of(made, "output/a", final=True)
        assert again.same_as == 1
        assert made.grader.copy_of(again) == made.paths.submission(1)
        assert made.paths.submission(1).is_dir()
        assert not made.paths.submission(4).exists()


def test_the_best_is_the_earlier_of_equals(tmp_path: Path) -> None:
    with bench(tmp_path) as made:
        _grade_of(made, made.save("a", right=120))
        _grade_of(made, made.save("b", right=120, other=1))
        assert made.grader.best is not None
        assert made.grader.best.submission_id == 1


def test_a_gpu_that_is_not_there_is_refused_and_ignored_where_there_is_none(tmp_path: Path) -> None:
    with bench(tmp_path / "gpu", gpus=("MIG-1", "7")) as made:
        with pytest.raises(BadRequest, match="gpu"):
            _submit(made, made.save("v1"), gpu="0")
        _grade_of(made, made.save("v1"), gpu="7")
        _grade_of(made, made.save("v2", right=1))
        assert made.assessor.gpus == ["7", "MIG-1"]
    with bench(tmp_path / "cpu") as made:
        grade = _grade_of(made, made.save("v1"), gpu="0")
    assert any("gpu" in warning for warning in grade.warnings)


def test_sixteen_from_eight_threads_get_sixteen_numbers_and_each_content_one_grading(tmp_path: Path) -> None:
    with bench(tmp_path) as made:
        paths = [made.save(f"different{k}", right=100 + k) for k in range(8)]
        paths += [made.save(f"equal{k}", right=77) for k in range(5)]
        for k in range(3):
            (made.paths.workspace.output / f"broken{k}").mkdir()
            paths.append(f"output/broken{k}")
        numbers: list[int] = []

        def client(mine: list[str]) -> None:
            for path in mine:
                while True:
                    try:
                        numbers.append(_submit(made, path))
                        break
                    except TooMany as refused:
                        time.sleep(min(0.02, refused.retry_after_s or 0))

        threads = [threading.Thread(target=client, args=(paths[k::8],)) for k in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert made.grader.drain(120)
        assert sorted(numbers) == list(range(1, 17))
        assert [grade.submission_id for grade in made.grader.grades] == list(range(1, 17))
        assert len(made.assessor.contents) == len(set(made.assessor.contents)) == 9
        assert verify(made.paths.ledger).count == made.ledger.count


def test_a_ledger_that_can_no_longer_be_written_ends_the_grader(tmp_path: Path) -> None:
    assessor = ScriptedAssessor(hold=True)
    with bench(tmp_path, assessor=assessor) as made:
        ticket = made.grader.submit(SubmitRequest(model_path=made.save("v1")))
        made.ledger.close()
        assessor.let_go.set()
        with pytest.raises(LedgerError):
            ticket.wait(10)
        with pytest.raises(LedgerError):
            made.grader.drain(60)
        with pytest.raises(Closed):
            _submit(made, made.save("v2"))


def test_what_an_agent_writes_into_exports_is_overwritten(tmp_path: Path) -> None:
    with bench(tmp_path) as made:
        _grade_of(made, made.save("v1"))
        scores = made.paths.workspace.scores
        scores.write_text('[{"submission_id": 1, "score": 100.0}]', "utf-8")
        made.paths.workspace.run_meta.unlink()
        made.paths.workspace.run_meta.mkdir()
        _grade_of(made, made.save("v2", right=110))
        assert [entry["score"] for entry in json.loads(scores.read_text("utf-8"))] == [60.0, 55.0]
        meta = json.loads(made.paths.workspace.run_meta.read_text("utf-8"))
        assert meta["start_time"] + meta["timeout_s"] == 1_770_003_600


def test_an_export_through_a_planted_link_leaves_its_target_alone(tmp_path: Path) -> None:
    with bench(tmp_path) as made:
        victim = tmp_path / "victim"
        victim.write_text("mine", "utf-8")
        scores = made.paths.workspace.scores
        scores.unlink()
        scores.symlink_to(victim)
        _grade_of(made, made.save("v1"))
        assert victim.read_text("utf-8") == "mine"
        assert not scores.is_symlink()


def test_ungraded_rows_of_scores_json_have_no_score_key(tmp_path: Path) -> None:
    with bench(tmp_path) as made:
        _grade_of(made, made.save("v1", raises="unloadable"))
        (entry,) = json.loads(made.paths.workspace.scores.read_text("utf-8"))
    assert "score" not in entry
    assert "improvement" not in entry
    assert entry["error"] == "a tensor is missing"


def test_output_itself_may_hold_the_weights(tmp_path: Path) -> None:
    with bench(tmp_path) as made:
        made.save("checkpoint-1", right=10)
        checkpoint(made.paths.workspace.output, right=140)
        grade = _grade_of(made, "output")
    assert grade.value == 70.0
    assert grade.load is not None
    assert grade.load.notes == ("not copied: checkpoint-1/",)


def test_a_folder_that_vanishes_between_check_and_copy_is_unloadable(tmp_path: Path) -> None:
    assessor = ScriptedAssessor()
    with bench(tmp_path, assessor=assessor) as made:
        path = made.save("v1")
        stop = threading.Event()

        def flicker() -> None:
            folder = made.paths.workspace.output / "v1"
            while not stop.is_set():
                shutil.rmtree(folder, ignore_errors=True)
                checkpoint(folder)

        thread = threading.Thread(target=flicker)
        thread.start()
        try:
            for _ in range(20):
                try:
                    grade = _grade_of(made, path)
                except (BadRequest, TooMany):
                    continue
                assert grade.status in (Verdict.GRADED, Verdict.UNLOADABLE)
        finally:
            stop.set()
            thread.join()


def test_more_weights_than_a_fine_tune_can_have_are_rejected(tmp_path: Path) -> None:
    with bench(tmp_path) as made:
        folder = made.paths.workspace.output / "v1"
        write_safetensors(folder / "model.safetensors", b"x" * (LIMITS.weight_bytes + 1))
        grade = _grade_of(made, "output/v1")
    assert grade.status is Verdict.REJECTED


def test_equal_and_broken_submissions_from_many_threads_lose_no_copy_that_may_be_tested(
    tmp_path: Path,
) -> None:
    with bench(tmp_path) as made:
        equal = [made.save(f"equal{k}", right=60 + k % 3) for k in range(24)]
        broken = [f"output/broken{k}" for k in range(24)]
        for path in broken:
            (made.paths.workspace.root / path).mkdir()

        def client(mine: list[str]) -> None:
            for path in mine:
                while True:
                    try:
                        _submit(made, path)
                        break
                    except TooMany:
                        time.sleep(0.01)

        paths = [path for pair in zip(equal, broken, strict=True) for path in pair]
        threads = [threading.Thread(target=client, args=(paths[k::6],)) for k in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert made.grader.drain(60)
        assert made.grader.failure is None
        graded = [grade for grade in made.grader.grades if grade.value is not None]
        best = made.grader.best
        assert best is not None
        assert all(made.grader.copy_of(grade).is_dir() for grade in (best, graded[-1]))
