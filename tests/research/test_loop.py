"""The loop with a scenario that trains nothing: it ends anywhere, and the next one goes on from there."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from posttrain.core.paths import Workspace
from posttrain.llm.client import LlmClient
from posttrain.llm.settings import LlmSettings
from posttrain.llm.transcript import Transcript
from posttrain.research.account import Account, Stopwatch
from posttrain.research.loop import Bench, Loop
from posttrain.research.nodes import Execution, Node, Proposal, Scored
from posttrain.research.places import IterationPlaces, Places
from posttrain.research.policy import Policy
from posttrain.research.post_training.answers import Idea, Program
from posttrain.testing.scripted_llm import ScriptedLlm
from research.kit import Turn, play, shape
from research.nodes import graded

STORY = (Turn("one", "score = 70\n"), Turn("two", "score = 40\n"), Turn("three", "score = 90\n"))
STEPS = ("build", "dry_run", "train", "score", "report", "discard")


class Killed(BaseException):
    """What a kill is to this process."""


class Paper:
    """A scenario on paper: the code says the score. `ends_in` names where the process is killed."""

    idea: type[Proposal] = Idea
    program: type[BaseModel] = Program

    def __init__(self, *, ends_in: tuple[str, int] | None = None) -> None:
        self.done: list[tuple[str, int]] = []
        self._ends_in = ends_in

    def _do(self, step: str, number: int) -> None:
        if (step, number) == self._ends_in:
            raise Killed
        self.done.append((step, number))

    def role(self) -> str:
        return "You work on paper."

    def briefing(self) -> str:
        return "Nothing is known. " * 2000

    def manual(self) -> str:
        return "Say the score."

    def skeleton(self) -> str:
        return "score = 0"

    def build(self, places: IterationPlaces, program: BaseModel) -> tuple[str, ...]:
        self._do("build", places.number)
        assert isinstance(program, Program)
        places.code.mkdir(parents=True, exist_ok=True)
        places.script.write_text(program.code, "utf-8")
        return (places.script.name,)

    def dry_run(self, places: IterationPlaces, *, limit_s: float) -> Execution:
        return self._run("dry_run", places, limit_s)

    def train(self, places: IterationPlaces, *, limit_s: float) -> Execution:
        return self._run("train", places, limit_s)

    def _run(self, step: str, places: IterationPlaces, limit_s: float) -> Execution:
        self._do(step, places.number)
        return Execution(exit_code=0, seconds=0.01, limit_s=limit_s, ended="exit")

    def score(self, places: IterationPlaces, *, note: str) -> Scored:
        self._do("score", places.number)
        score = float(places.script.read_text("utf-8").split("=")[1])
        return Scored(grade=graded(score, number=places.number))

    def report(self, nodes: Sequence[Node]) -> None:
        self._do("report", len(nodes))

    def discard(self, places: IterationPlaces) -> None:
        self._do("discard", places.number)


Run = Callable[[Path, Paper], tuple[Account, list[Node]]]


def paper_bench(folder: Path, scenario: Paper, url: str) -> Bench:
    end = time.monotonic() + 3600
    return Bench(
        scenario=scenario,
        llm=LlmClient(
            LlmSettings(model="scripted", base_url=url),
            transcript=Transcript(Places(Workspace(folder)).transcript),
        ),
        places=Places(Workspace(folder)),
        policy=Policy(most_iterations=3, drafts=1),
        remaining=lambda: end - time.monotonic(),
        log=lambda text: None,
        most_chars=20_000,
        fault_pause_s=0.0,
    )


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    with ScriptedLlm(play(STORY)) as llm:

        def begin(folder: Path, scenario: Paper) -> tuple[Account, list[Node]]:
            loop = Loop(paper_bench(folder, scenario, llm.url), watch=Stopwatch())
            return loop.run(), loop.nodes

        yield begin


@pytest.fixture(scope="module")
def unbroken(run: Run, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    return shape(run(tmp_path_factory.mktemp("unbroken"), Paper())[1])


@pytest.mark.parametrize("number", [1, 3])
@pytest.mark.parametrize("step", STEPS)
def test_a_loop_that_ended_anywhere_is_gone_on_with(
    run: Run, unbroken: list[Any], tmp_path: Path, step: str, number: int
) -> None:
    if (step, number) == ("discard", 3):
        number = 2  # the third is the best one
    first, second = Paper(ends_in=(step, number)), Paper()
    with pytest.raises(Killed):
        run(tmp_path, first)
    _, nodes = run(tmp_path, second)
    assert shape(nodes) == unbroken
    assert not {each for each in first.done if each[0] in STEPS[:4]} & set(second.done)


def test_an_improvement_has_the_best_as_its_parent(unbroken: list[Any]) -> None:
    assert [(kind, parent) for _, kind, parent, *_ in unbroken] == [
        ("draft", None), ("improve", 1), ("improve", 1),
    ]  # fmt: skip


def test_a_fault_of_ours_is_tried_again_and_then_told(run: Run, tmp_path: Path) -> None:
    class Broken(Paper):
        def dry_run(self, places: IterationPlaces, *, limit_s: float) -> Execution:
            raise OSError(28, "No space left on device")

    account, nodes = run(tmp_path, Broken())
    assert "No space left" in account.ended
    assert nodes == []


def test_an_account_that_cannot_be_written_costs_no_iteration(run: Run, tmp_path: Path) -> None:
    (tmp_path / "research" / "summary.json" / "more").mkdir(parents=True)
    account, nodes = run(tmp_path, Paper())
    assert account.iterations == len(nodes) == 3


def test_the_account_knows_what_is_the_loops_own(run: Run, tmp_path: Path) -> None:
    account, nodes = run(tmp_path, Paper())
    assert account.iterations == len(nodes) == 3
    assert account.usage.calls == 9
    assert account.own_s <= account.wall_s


def test_what_an_unfinished_iteration_cost_is_in_the_account(tmp_path: Path) -> None:
    idea, code, *_ = play(STORY)
    ends = {"when": "step code.", "status": 401}
    for calls in (1, 1):  # the second process finds the first one's idea
        with ScriptedLlm([idea, ends]) as llm:
            account = Loop(paper_bench(tmp_path, Paper(), llm.url), watch=Stopwatch()).run()
        assert (account.iterations, account.usage.calls) == (0, calls)
    with ScriptedLlm([code, ends | {"when": "step review."}]) as llm:
        account = Loop(paper_bench(tmp_path, Paper(), llm.url), watch=Stopwatch()).run()
    assert (account.iterations, account.usage.calls) == (0, 2)


def test_a_short_context_makes_questions_short(run: Run, tmp_path: Path) -> None:
    told = "This model's maximum context length is 4096 tokens"
    with ScriptedLlm([{"status": 400, "message": told}, *play(STORY)]) as llm:
        loop = Loop(paper_bench(tmp_path, Paper(), llm.url), watch=Stopwatch())
        assert loop.run().iterations == 3
        first, second = (sum(len(m["content"]) for m in each.body["messages"]) for each in llm.requests[:2])
    assert second < 0.7 * first
