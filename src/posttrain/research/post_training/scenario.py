"""RL post-training for the loop: one training script an iteration, graded by the run's own server."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from pydantic import BaseModel

from posttrain.core.paths import Workspace
from posttrain.reports.summaries.words import Lang
from posttrain.research.digest import clip
from posttrain.research.nodes import Execution, Failure, Node, Proposal, Scored
from posttrain.research.places import IterationPlaces, remove
from posttrain.research.post_training.answers import Idea, Program
from posttrain.research.post_training.briefing import briefing, manual, role, skeleton
from posttrain.research.post_training.execution import Runner
from posttrain.research.post_training.handing_in import Desk, find_checkpoint
from posttrain.research.post_training.reporting import append_reports


class PostTraining:
    """The scenario of this package."""

    idea: type[Proposal] = Idea
    program: type[BaseModel] = Program

    def __init__(
        self,
        workspace: Workspace,
        *,
        environ: Mapping[str, str],
        runner: Runner,
        desk: Desk,
        most_chars: int,
        lang: Lang,
    ) -> None:
        self._workspace = workspace
        self._runner = runner
        self._desk = desk
        self._lang: Lang = lang
        self._briefing = briefing(workspace, environ, most=most_chars // 2)
        self._manual = manual(most=most_chars // 2)

    def role(self) -> str:
        return role()

    def briefing(self) -> str:
        return self._briefing

    def manual(self) -> str:
        return self._manual

    def skeleton(self) -> str:
        return skeleton()

    def build(self, places: IterationPlaces, program: BaseModel) -> tuple[str, ...]:
        assert isinstance(program, Program)
        remove(places.code)
        places.code.mkdir(parents=True, exist_ok=True)
        about = clip(" ".join(program.changes.split()), 300) or "as proposed"
        head = f"# Iteration {places.number} of the research loop\n# {about}\n\n"
        places.script.write_text(head + program.code, "utf-8")
        return (places.script.name,)

    def dry_run(self, places: IterationPlaces, *, limit_s: float) -> Execution:
        execution = self._runner.run(places, "dry_run", limit_s=limit_s)
        remove(places.output)
        return execution

    def train(self, places: IterationPlaces, *, limit_s: float) -> Execution:
        execution = self._runner.run(places, "train", limit_s=limit_s)
        if execution.failure is None and find_checkpoint(places.output) is None:
            execution = execution.model_copy(update={"failure": _no_checkpoint(execution)})
        if execution.failure is not None:
            remove(places.output)  # of no more use, and perhaps what fills the disk
        return execution

    def score(self, places: IterationPlaces, *, note: str) -> Scored:
        folder = find_checkpoint(places.output)
        if folder is None:
            return Scored(failure=Failure(fault="no_checkpoint", text="the checkpoint is gone"))
        return self._desk.score(folder, note=f"iteration {places.number}: {note}")

    def report(self, nodes: Sequence[Node]) -> None:
        served = self._desk.submissions()
        append_reports(self._workspace, nodes, served=served, now=time.time(), lang=self._lang)

    def discard(self, places: IterationPlaces) -> None:
        remove(places.output)


def _no_checkpoint(run: Execution) -> Failure:
    if run.ended == "limit":
        return Failure(fault="timeout", text=f"stopped after {run.limit_s:.0f} s without a whole checkpoint")
    return Failure(
        fault="no_checkpoint", text="the script ended without a whole checkpoint in CHECKPOINT_DIR"
    )
