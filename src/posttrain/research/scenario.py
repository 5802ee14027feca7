"""What a scenario supplies to the loop: words for the driver model, building, running, scoring, reporting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pydantic import BaseModel

from posttrain.research.nodes import Execution, Node, Proposal, Scored
from posttrain.research.places import IterationPlaces


class Scenario(Protocol):
    """One kind of research. The loop knows none by name."""

    idea: type[Proposal]
    """What a proposal holds."""
    program: type[BaseModel]
    """What the coding answer holds; fields `code` and `changes` at least."""

    def role(self) -> str:
        """Who the driver model is and what counts, for every call."""
        ...

    def briefing(self) -> str:
        """Everything that does not change during a run: task, rules, data, machine, library."""
        ...

    def manual(self) -> str:
        """What code must do, and what it may call."""
        ...

    def skeleton(self) -> str:
        """The shortest code that does it, to begin with."""
        ...

    def build(self, places: IterationPlaces, program: BaseModel) -> tuple[str, ...]:
        """Write the files of an answer; their names."""
        ...

    def dry_run(self, places: IterationPlaces, *, limit_s: float) -> Execution:
        """Prove that the files run, in short."""
        ...

    def train(self, places: IterationPlaces, *, limit_s: float) -> Execution:
        """Run them in earnest."""
        ...

    def score(self, places: IterationPlaces, *, note: str) -> Scored:
        """Hand in what this iteration made, and wait for the grade. Nothing is handed in twice."""
        ...

    def report(self, nodes: Sequence[Node]) -> None:
        """Tell about the last node where people look for it; once."""
        ...

    def discard(self, places: IterationPlaces) -> None:
        """Remove what is large of an iteration that is not the best; its words and numbers stay."""
        ...
