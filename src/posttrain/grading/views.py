"""What engine workers and scorers see: their own inputs, and no network."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from posttrain.core.evaluation import ScoringJob
from posttrain.infra.sandbox import Isolation, Relay, View, hand_over, require_readable

HOME = Path("/home/grader")
"""Empty and writable inside; caches of libraries go there and end with the process."""
_SHUT_IN = frozenset({"code"})
"""Evaluators that shut each program they test into a view of its own, which takes the host's /proc."""


@dataclass(frozen=True)
class WorkerViews:
    """The views of one run's workers. Without isolation they see what the harness sees."""

    isolation: Isolation = "none"
    uid: int | None = None
    """Whom they run as under root: neither root nor the agent."""
    hidden: tuple[Path, ...] = ()
    """Covered where it would show up in something visible: lab home, launch folder, private sources."""

    def engine(self, base: Path, submission: Path | None = None) -> View:
        """The base model and one checkpoint, read-only. UsageError for a base that is closed to others."""
        require_readable(base, self.uid)
        return self._allow([base] if submission is None else [base, submission])

    def weights(self, folders: Sequence[Path]) -> View:
        """Checkpoints that are compared, read-only."""
        return self._allow(folders)

    def scorer(self, job: ScoringJob) -> View:
        """The task's folder, read-only, and a checkpoint that it loads; all else comes through its pipe."""
        if job.evaluator in _SHUT_IN and self.isolation != "none":
            return View.host(network="none")
        model = [] if job.model is None else [Path(job.model)]
        return self._allow([Path(job.folder), *model])

    def tool(self, shown: Sequence[Path], work: Path, relay: Relay | None) -> View:
        """A tool's environment, read-only, and a folder of its own; `relay` is all its network."""
        if self.isolation == "none":
            return View.host()
        if self.uid is not None:
            hand_over(work, self.uid)
        return View.allow_list(
            home=HOME,
            uid=self.uid,
            network="grader",
            relay=relay,
            writable=[work],
            readable=shown,
            hidden=self.hidden,
        )

    def tool_peers(self) -> set[int] | None:
        """Whose connections are a tool's; None where everybody is the same user."""
        if self.isolation == "none":
            return None
        return {os.getuid() if self.uid is None else self.uid}

    def _allow(self, readable: Sequence[Path]) -> View:
        if self.isolation == "none":
            return View.host()
        return View.allow_list(home=HOME, uid=self.uid, network="none", readable=readable, hidden=self.hidden)
