"""A card that another process holds, from the worker to the agent's answer; only the card is a stand-in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from grading_kit import (
    SECRET,
    Allowance,
    boolean_exam,
    engine_workers,
    scripted_base,
    scripted_checkpoint,
)
from posttrain.checkpoints.snapshot import SnapshotLimits
from posttrain.core.paths import RunPaths
from posttrain.engines.scripted import Script
from posttrain.grading.answers import RulesNote
from posttrain.grading.app import Service, build_app
from posttrain.grading.client import Reply, call
from posttrain.grading.exports import Exports
from posttrain.grading.grader import Grader
from posttrain.grading.ledger import Ledger
from posttrain.grading.server import GradingServer, base_url, bind_tcp
from posttrain.grading.verdicts import Terms
from posttrain.grading.workers import Assessor
from posttrain.infra.processes import Spawner

CAP = 2


class Lab:
    """A served run with real workers, and the card they compute on."""

    def __init__(self, base: Path, paths: RunPaths, ledger: Ledger, url: str) -> None:
        self.base, self.paths, self.ledger, self.url = base, paths, ledger, url

    def hold_the_card(self, *, at: str) -> None:
        """From now on a new worker finds no memory: when it opens the base, or while it answers."""
        self._script(Script(accuracy=0.5, fault="busy", at=at))

    def free_the_card(self) -> None:
        self._script(Script(accuracy=0.5))

    def save(self, name: str, **script: object) -> str:
        scripted_checkpoint(self.base, self.paths.workspace.output / name, **script)
        return f"output/{name}"

    def submit(self, path: str) -> Reply:
        return call(self.url, "/submit", body={"model_path": path}, timeout_s=60)

    def _script(self, script: Script) -> None:
        (self.base / "scripted.json").write_text(script.model_dump_json(), "utf-8")


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    base, paths, budget = scripted_base(tmp_path / "base"), RunPaths(tmp_path / "run"), Allowance()
    paths.workspace.output.mkdir(parents=True)
    exam, exports = boolean_exam(base, items=40), Exports(paths.workspace, timeout_s=budget.timeout_s)
    with (
        Spawner() as spawner,
        Assessor(
            exam, paths=paths, timeout_s=60.0, kill_mode=spawner.kill_mode, shelf=paths.submissions
        ) as assessor,
        Ledger(paths.ledger, torn=paths.torn) as ledger,
    ):
        terms = Terms(
            split="val",
            baseline=assessor.assess(None, label="baseline-val").evaluation,
            limits=SnapshotLimits.for_base(base),
            max_submissions=CAP,
        )
        assessor.rest()
        with Grader(
            paths=paths, ledger=ledger, assessor=assessor, terms=terms, budget=budget, exports=exports
        ) as grader:
            rules = RulesNote(text="# Rules\n\nBe fair.\n", sentence="Be fair.")
            root = str(paths.workspace.root)
            service = Service(grader=grader, rules=rules, task="boolean", workspace=root, nonce="n1")
            listener, _ = bind_tcp(0, given=True)
            grader.open()
            with GradingServer(build_app(service, secret=SECRET), [listener]):
                yield Lab(base, paths, ledger, base_url(listener.getsockname()[1], SECRET))
    assert engine_workers() == []


def replaced_worker(lab: Lab) -> None:
    """The worker that stays loses its place, so that the next grading has to ask for the card again."""
    assert lab.submit(lab.save("dying", weights=9, fault="crash", at="generate")).status == 503


def test_a_card_that_is_held_is_a_503_with_a_hint_once_and_freed_the_same_checkpoint_is_graded(
    lab: Lab,
) -> None:
    replaced_worker(lab)
    path = lab.save("v1", accuracy=1.0)
    lab.hold_the_card(at="open")
    refused = [lab.submit(path) for _ in range(CAP + 1)]
    assert [reply.status for reply in refused] == [503] * (CAP + 1), "none of them uses up the cap"
    for reply in refused:
        assert (reply.content["status"], reply.content["score"]) == ("error", None)
        assert "device memory are free, grading's share is" in reply.content["error"]
        assert "Free device memory" in reply.content["hint"]
    assert engine_workers() == []
    lab.free_the_card()
    graded = lab.submit(path)
    assert (graded.status, graded.content["score"], graded.content["same_as"]) == (200, 100.0, None)


def test_a_card_that_runs_out_while_it_answers_costs_the_worker_and_is_not_tried_again(lab: Lab) -> None:
    reply = lab.submit(lab.save("v1", fault="busy", at="generate"))
    assert (reply.status, reply.content["score"]) == (503, None)
    assert "Free device memory" in reply.content["hint"]
    assert engine_workers() == []
    kinds = [row.kind for row in lab.ledger.rows()]
    assert "event" not in kinds, "waiting cures it, a second try does not"
