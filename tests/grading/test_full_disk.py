"""A run on a disk that fills up: nothing half-written counts, and a known verdict is not lost."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from grading_kit import ScriptedAssessor, bench, checkpoint, served
from posttrain.core.grading import SubmitRequest, Verdict
from posttrain.grading.ledger import verify


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 1 MiB."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"no small disk here: {mounted.stderr.decode()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def _fill(folder: Path) -> Path:
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            return filler


def test_a_copy_that_does_not_fit_is_a_507_with_a_number_and_the_next_one_is_graded(small_disk: Path) -> None:
    with served(small_disk) as made:
        large = made.save("large", content=os.urandom(700_000))
        reply = made.post({"model_path": large})
        assert reply.status == 507
        assert (reply.content["submission_id"], reply.content["status"]) == (1, "error")
        assert "disk is full" in reply.content["hint"]
        assert not list(made.paths.submissions.iterdir())
        assert made.post({"model_path": made.save("small")}).status == 200
        assert made.grader.grades[0].counts is False


def test_a_full_disk_while_a_verdict_is_recorded_delays_it_and_loses_nothing(small_disk: Path) -> None:
    assessor = ScriptedAssessor(hold=True)
    with bench(small_disk, assessor=assessor) as made:
        ticket = made.grader.submit(SubmitRequest(model_path=made.save("v1", right=150), note="x" * 4000))
        assert assessor.entered.wait(10)
        filler = _fill(small_disk)
        assessor.let_go.set()
        with pytest.raises(TimeoutError):
            ticket.wait(1.5)
        filler.unlink()
        assert ticket.wait(10).value == 75.0
        assert verify(made.paths.ledger).count == 3


def test_a_run_that_is_stopped_on_a_full_disk_grades_the_submission_again_later(small_disk: Path) -> None:
    assessor = ScriptedAssessor(hold=True)
    with bench(small_disk, assessor=assessor) as made:
        made.grader.submit(SubmitRequest(model_path=made.save("v1", right=150), note="x" * 4000))
        assert assessor.entered.wait(10)
        filler = _fill(small_disk)
        assessor.let_go.set()
        threading.Event().wait(0.5)
        made.grader.stop()
    filler.unlink()
    assert verify(made.paths.ledger).count == 2
    with bench(small_disk) as again:
        assert again.grader.drain(60)
        assert again.grader.grades[0].value == 75.0


def test_no_number_is_given_when_not_even_its_row_fits(small_disk: Path) -> None:
    with served(small_disk) as made:
        path = made.save("v1")
        note = "x" * 4000  # longer than what is left in the last block of the ledger
        filler = _fill(small_disk)
        reply = made.post({"model_path": path, "note": note})
        assert reply.status == 507
        assert "submission_id" not in reply.content
        assert made.grader.total == 0
        filler.unlink()
        assert made.post({"model_path": path}).content["submission_id"] == 1


def test_a_read_only_submissions_folder_is_our_fault_and_named(tmp_path: Path) -> None:
    with bench(tmp_path) as made:
        path = made.save("v1")
        made.paths.submissions.rmdir()
        made.paths.submissions.write_text("not a folder", "utf-8")
        grade = made.grader.submit(SubmitRequest(model_path=path)).wait(10)
        assert grade.status is Verdict.ERROR
        made.paths.submissions.unlink()
        made.paths.submissions.mkdir()
        checkpoint(made.paths.workspace.output / "v1", right=100)
        assert made.grader.submit(SubmitRequest(model_path=path)).wait(10).value == 50.0
