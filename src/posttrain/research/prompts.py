"""What the driver model is asked in each step. Every question names its iteration and step first.

A server that answers by content, and a reader of the transcript, can tell them apart by that line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from posttrain.research.digest import clip, curve_text, fit, grade_text, journal_text
from posttrain.research.nodes import Execution, Failure, Graded, Move, Node, Proposal
from posttrain.research.policy import best_of
from posttrain.research.scenario import Scenario

MOST = 40_000
"""Characters of a question, unless told otherwise."""
LEAST = 3_000
"""With fewer, task and contract do not fit."""


@dataclass(frozen=True)
class Question:
    """System and user text of one call, and its name in the transcript."""

    name: str
    system: str
    user: str


class Prompts:
    """Writes questions, none longer than `most` characters."""

    def __init__(self, scenario: Scenario, *, most: int = MOST) -> None:
        self._scenario = scenario
        self._most = most

    @property
    def most(self) -> int:
        """Characters of a question."""
        return self._most

    def halve(self) -> bool:
        """Write shorter questions; False if they could not say enough any more."""
        if self._most // 2 < LEAST:
            return False
        self._most //= 2
        return True

    def propose(
        self, number: int, move: Move, nodes: Sequence[Node], *, remaining_s: float, parent_code: str
    ) -> Question:
        best = best_of(nodes)
        sections = [
            ("Facts", self._scenario.briefing(), 6),
            ("Journal of this run", journal_text(nodes, best=best, most=self._most // 3), 4),
            ("Code of the parent", _fenced(parent_code), 3),
            ("Time", f"{remaining_s / 60:.1f} minutes of the budget are left.", 1),
        ]
        task = f"{_task(move)} Propose one idea, small enough that one training shows whether it helps."
        return self._question(number, "propose", sections, task)

    def code(
        self,
        number: int,
        move: Move,
        idea: Proposal,
        *,
        train_s: float,
        parent: Node | None,
        parent_code: str,
        parent_log: str,
    ) -> Question:
        sections = [
            ("Idea", _idea(idea), 2),
            ("What the script must do", self._scenario.manual(), 6),
            ("Facts", self._scenario.briefing(), 4),
            ("Code of the parent", _fenced(parent_code), 4),
            ("How the parent failed", _failed(parent), 1),
            ("Last lines of the parent's log", parent_log, 3),
        ]
        task = "Write the whole training script for this idea."
        if move.kind == "debug":
            task = "The parent's script failed. Write the whole script again with the fault mended."
        task += (
            f" It gets about {train_s:.0f} seconds. Keep it short: a script is no longer than its idea needs."
        )
        if not parent_code.strip():
            task += (
                f" Begin with this and change what the idea changes:\n{_fenced(self._scenario.skeleton())}"
            )
        return self._question(number, "code", sections, task)

    def review(
        self,
        number: int,
        idea: Proposal,
        *,
        run: Execution | None,
        grade: Graded | None,
        failure: Failure | None,
        nodes: Sequence[Node],
    ) -> Question:
        sections = [
            ("Idea", _idea(idea), 2),
            ("Result", _result(run, grade, failure), 4),
            ("Last lines of its log", run.tail if run else "", 3),
            ("Journal of this run", journal_text(nodes, best=best_of(nodes), most=self._most // 4), 3),
        ]
        return self._question(number, "review", sections, "Say what this result shows, and what to do next.")

    def _question(
        self, number: int, step: str, sections: Sequence[tuple[str, str, int]], task: str
    ) -> Question:
        head = f"Iteration {number}, step {step}."
        system = self._scenario.role()
        room = self._most - len(system) - len(task) - len(head) - 40
        body = fit(sections, most=max(400, room))
        return Question(
            name=f"iteration {number}, {step}",
            system=system,
            user=f"{head}\n\n{body}\n\n## Your task\n{task}",
        )


def _task(move: Move) -> str:
    match move.kind:
        case "draft":
            return "Begin afresh from the base model, with an approach that the journal does not hold yet."
        case "improve":
            return f"Improve iteration #{move.parent}, the best so far: change one thing and say why."
        case "debug":
            return f"Iteration #{move.parent} failed. Keep its idea and say how its fault is mended."


def _idea(idea: Proposal) -> str:
    return "\n".join(
        f"{name}: {value}" for name, value in idea.model_dump().items() if value not in (None, "")
    )


def _fenced(code: str) -> str:
    return f"```python\n{code.rstrip()}\n```" if code.strip() else ""


def _failed(parent: Node | None) -> str:
    return f"{parent.failure.fault}: {parent.failure.text}" if parent is not None and parent.failure else ""


def _result(run: Execution | None, grade: Graded | None, failure: Failure | None) -> str:
    lines = []
    if run is not None:
        code = "stopped by us" if run.exit_code is None else f"exit code {run.exit_code}"
        lines.append(f"training: {code} after {run.seconds:.0f} s of {run.limit_s:.0f} s")
        if run.curve.points:
            lines.append(f"curve: {curve_text(run)}")
    if grade is not None:
        lines.append(grade_text(grade))
        lines += [f"warning of the grader: {clip(text, 300)}" for text in grade.warnings]
    if failure is not None:
        lines.append(f"failed ({failure.fault}): {clip(failure.text, 1000)}")
    return "\n".join(lines)
