"""propose → code → run → submit → feedback → record, until the budget ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TypeVar

from pydantic import BaseModel

from posttrain.core.errors import PosttrainError, boundary
from posttrain.infra.digests import digest_bytes
from posttrain.infra.files import write_json
from posttrain.llm.client import Answer, LlmClient
from posttrain.llm.messages import LlmFailed, Usage
from posttrain.research.account import Account, Stopwatch
from posttrain.research.journal import Journal, Steps
from posttrain.research.nodes import (
    Begun,
    Built,
    Execution,
    Failure,
    Fault,
    Node,
    Opinion,
    Proposal,
    Proposed,
    Reviewed,
    Scored,
)
from posttrain.research.places import IterationPlaces, Places
from posttrain.research.policy import (
    Costs,
    Policy,
    best_of,
    choose,
    decide,
    dry_run_limit,
    train_limit,
    why_stop,
)
from posttrain.research.prompts import Prompts, Question
from posttrain.research.scenario import Scenario

_T = TypeVar("_T", bound=BaseModel)

_MOST_FAULTS = 4
"""Times in a row that an iteration may fail for a reason of ours before the loop ends."""


class Refused(PosttrainError):
    """The driver model's server says that key, address or name is wrong: no iteration can help."""


@dataclass(frozen=True)
class Bench:
    """What the loop works with."""

    scenario: Scenario
    llm: LlmClient
    places: Places
    policy: Policy
    remaining: Callable[[], float]
    """Seconds of the budget."""
    log: Callable[[str], None]
    most_chars: int
    """Of a question."""
    fault_pause_s: float = 5.0
    """Before an iteration that failed for a reason of ours is tried again; longer each time."""


@dataclass(frozen=True)
class _Walk:
    """How far one iteration came."""

    begun: Begun
    proposed: Proposed
    built: Built | None = None
    dry: Execution | None = None
    trained: Execution | None = None
    scored: Scored = field(default_factory=Scored)
    reviewed: Reviewed = field(default_factory=Reviewed)


class Loop:
    """One run. A second process with the same places goes on where the first one died."""

    def __init__(self, bench: Bench, *, watch: Stopwatch) -> None:
        self._bench = bench
        self._watch = watch
        self._journal = Journal(bench.places.journal, torn=bench.places.torn)
        self._prompts = Prompts(bench.scenario, most=bench.most_chars)

    @property
    def nodes(self) -> list[Node]:
        """Finished iterations."""
        return self._journal.nodes

    def run(self) -> Account:
        """Iterate until there is a reason to stop; the account is also written to summary.json."""
        bench, nodes = self._bench, self._journal.nodes
        if self._journal.moved:
            bench.log(
                f"the journal was damaged: {self._journal.moved} lines moved to {bench.places.torn.name}"
            )
        if nodes:
            bench.log(f"{len(nodes)} iterations are done")
            self._report()
        faults = 0
        while (why := why_stop(nodes, remaining_s=bench.remaining(), policy=bench.policy)) is None:
            try:
                with boundary(PosttrainError, f"iteration {len(nodes) + 1}"):
                    self._finish(self._iterate(len(nodes) + 1))
                faults = 0
            except Refused as error:
                why = str(error)
                break
            except PosttrainError as error:
                # such as a full disk: what is done is kept, so the same iteration goes on where it was
                faults += 1
                bench.log(f"{error} ({faults} of {_MOST_FAULTS})")
                if faults == _MOST_FAULTS:
                    why = str(error)
                    break
                time.sleep(min(bench.fault_pause_s * faults, max(0.0, bench.remaining())))
        return self._account(why)

    def _finish(self, node: Node) -> None:
        """Record a node, tell of it, and drop what it no longer needs."""
        bench, nodes = self._bench, self._journal.nodes
        self._journal.append(node)
        whose = f"iteration {node.number}"
        if not node.decision.reason.startswith(f"{whose}, "):  # what failed in a step was told when it did
            bench.log(f"{whose}: {node.decision.reason}")
        self._report()
        best = best_of(nodes)
        for each in nodes:
            if best is None or each.number != best.number:
                bench.scenario.discard(bench.places.iteration(each.number))
        self._account("running")

    def _account(self, ended: str) -> Account:
        """The account, also in summary.json; one that cannot be written is told and costs nothing else."""
        account = self._watch.account(
            iterations=len(self._journal.nodes), usage=self._bench.llm.usage, ended=ended
        )
        try:
            with boundary(PosttrainError, "research/summary.json"):
                write_json(self._bench.places.summary, account)
        except PosttrainError as error:
            self._bench.log(str(error))
        return account

    def _report(self) -> None:
        """A report that cannot be written is told, and tried again after the next iteration."""
        try:
            with boundary(PosttrainError, "reports/summary.md"):
                self._bench.scenario.report(self._journal.nodes)
        except PosttrainError as error:
            self._bench.log(str(error))

    def _iterate(self, number: int) -> Node:
        """One iteration; each step's result is kept as soon as it is there."""
        places = self._bench.places.iteration(number)
        steps = Steps(places.steps)
        begun = steps.once("begun", Begun, self._begin)
        proposed = steps.once("proposed", Proposed, lambda: self._propose(number, begun))
        idea = self._idea(proposed)
        if idea is None:
            return self._node(number, _Walk(begun, proposed, scored=Scored(failure=proposed.failure)))
        built = steps.once("built", Built, lambda: self._build(places, begun, idea))
        if built.failure is not None:
            return self._node(number, _Walk(begun, proposed, built, scored=Scored(failure=built.failure)))
        dry = steps.once("dry_run", Execution, lambda: self._dry_run(places))
        trained = None if dry.failure else steps.once("trained", Execution, lambda: self._train(places, idea))
        last = trained or dry
        scored = Scored(failure=last.failure)
        if last.failure is None:
            scored = steps.once("scored", Scored, lambda: self._score(places, idea))
        reviewed = steps.once("reviewed", Reviewed, lambda: self._review(number, idea, last, scored))
        return self._node(number, _Walk(begun, proposed, built, dry, trained, scored, reviewed))

    # --- steps

    def _begin(self) -> Begun:
        return Begun(move=choose(self._journal.nodes, self._bench.policy), started=_now())

    def _propose(self, number: int, begun: Begun) -> Proposed:
        nodes, move = self._journal.nodes, begun.move
        parent_code = self._code_of(move.parent)

        def question() -> Question:
            return self._prompts.propose(
                number, move, nodes, remaining_s=self._bench.remaining(), parent_code=parent_code
            )

        answer, failure, usage, seconds = self._ask(self._bench.scenario.idea, question, "propose")
        idea = None if answer is None else answer.model_dump(mode="json")
        if answer is not None:
            self._bench.log(f"iteration {number}, {move.kind}: {answer.hypothesis}")
        return Proposed(idea=idea, failure=failure, usage=usage, seconds=seconds)

    def _idea(self, proposed: Proposed) -> Proposal | None:
        if proposed.idea is None:
            return None
        return self._bench.scenario.idea.model_validate(proposed.idea)

    def _build(self, places: IterationPlaces, begun: Begun, idea: Proposal) -> Built:
        bench, move = self._bench, begun.move
        parent = self._node_of(move.parent)

        def question() -> Question:
            return self._prompts.code(
                places.number,
                move,
                idea,
                train_s=self._train_limit(idea),
                parent=parent,
                parent_code=self._code_of(move.parent),
                parent_log=_log_of(parent) if move.kind == "debug" else "",
            )

        answer, failure, usage, seconds = self._ask(bench.scenario.program, question, "build")
        if answer is None:
            return Built(failure=failure, usage=usage, seconds=seconds)
        names = bench.scenario.build(places, answer)
        files = {name: digest_bytes((places.code / name).read_bytes()) for name in names}
        changes = str(getattr(answer, "changes", ""))
        return Built(files=files, changes=changes, usage=usage, seconds=seconds)

    def _dry_run(self, places: IterationPlaces) -> Execution:
        limit = dry_run_limit(remaining_s=self._bench.remaining(), policy=self._bench.policy)
        with _Timed(self._watch, "dry_run"):
            return self._bench.scenario.dry_run(places, limit_s=limit)

    def _train(self, places: IterationPlaces, idea: Proposal) -> Execution:
        limit = self._train_limit(idea)
        if limit <= 0:
            failure = Failure(fault="time", text="no time is left for a training")
            return Execution(exit_code=None, seconds=0.0, limit_s=0.0, ended="limit", failure=failure)
        with _Timed(self._watch, "train"):
            return self._bench.scenario.train(places, limit_s=limit)

    def _score(self, places: IterationPlaces, idea: Proposal) -> Scored:
        with _Timed(self._watch, "grade") as timed:
            scored = self._bench.scenario.score(places, note=idea.hypothesis)
        return scored.model_copy(update={"seconds": timed.seconds})

    def _review(self, number: int, idea: Proposal, run: Execution | None, scored: Scored) -> Reviewed:
        def question() -> Question:
            return self._prompts.review(
                number, idea, run=run, grade=scored.grade, failure=scored.failure, nodes=self._journal.nodes
            )

        answer, failure, usage, seconds = self._ask(Opinion, question, "review")
        return Reviewed(opinion=answer, failure=failure, usage=usage, seconds=seconds)

    def _node(self, number: int, walk: _Walk) -> Node:
        best = best_of(self._journal.nodes)
        scored, built, reviewed = walk.scored, walk.built or Built(), walk.reviewed
        return Node(
            number=number,
            kind=walk.begun.move.kind,
            parent=walk.begun.move.parent,
            idea=walk.proposed.idea,
            files=built.files,
            changes=built.changes,
            dry_run=walk.dry,
            training=walk.trained,
            grade=scored.grade,
            opinion=reviewed.opinion,
            decision=decide(
                scored.grade, scored.failure, best.grade if best is not None else None, reviewed.opinion
            ),
            failure=scored.failure,
            usage=walk.proposed.usage + built.usage + reviewed.usage,
            seconds={
                "propose": walk.proposed.seconds,
                "build": built.seconds,
                "dry_run": walk.dry.seconds if walk.dry else 0.0,
                "train": walk.trained.seconds if walk.trained else 0.0,
                "grade": scored.seconds,
                "review": reviewed.seconds,
            },
            started=walk.begun.started,
            ended=_now(),
        )

    # --- helpers

    def _ask(
        self, schema: type[_T], question: Callable[[], Question], step: str
    ) -> tuple[_T | None, Failure | None, Usage, float]:
        """A validated answer, or a failure that the journal records. Refused ends the loop."""
        answer: Answer[_T] | None = None
        failure = None
        with _Timed(self._watch, step) as timed:
            try:
                answer = self._within_context(schema, question)
                usage = answer.usage
            except LlmFailed as error:
                if error.reason == "refused":
                    raise Refused(str(error)) from error
                fault: Fault = "answer" if error.reason == "too_long" else error.reason
                failure, usage = Failure(fault=fault, text=str(error)), error.usage
        if failure is not None:
            self._bench.log(failure.text)
        return (answer.value if answer else None), failure, usage, timed.seconds

    def _within_context(self, schema: type[_T], question: Callable[[], Question]) -> Answer[_T]:
        """Ask; where the model's context is too short for it, halve all questions from here on."""
        while True:
            asked = question()
            try:
                return self._bench.llm.ask(schema, system=asked.system, user=asked.user, name=asked.name)
            except LlmFailed as error:
                if error.reason != "too_long" or not self._prompts.halve():
                    raise
                self._bench.log(f"{error}; questions are at most {self._prompts.most} characters now")

    def _train_limit(self, idea: Proposal) -> float:
        return train_limit(
            None if idea.minutes is None else idea.minutes * 60,
            remaining_s=self._bench.remaining(),
            costs=Costs.of(self._journal.nodes),
            policy=self._bench.policy,
        )

    def _node_of(self, number: int | None) -> Node | None:
        return None if number is None else self._journal.nodes[number - 1]

    def _code_of(self, number: int | None) -> str:
        if number is not None:
            with suppress(OSError):
                return self._bench.places.iteration(number).script.read_text("utf-8", "replace")
        return ""


def _log_of(parent: Node | None) -> str:
    run = None if parent is None else parent.training or parent.dry_run
    return run.tail if run else ""


class _Timed:
    """Seconds of a step, told to the watch."""

    def __init__(self, watch: Stopwatch, step: str) -> None:
        self._watch, self._step = watch, step
        self.seconds = 0.0

    def __enter__(self) -> _Timed:
        self._began = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = round(time.monotonic() - self._began, 3)
        self._watch.add(self._step, self.seconds)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
