"""Running a script: bounded, watched, its whole tree gone afterwards, without keys and without the grader."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from posttrain.infra.processes import Child, Command, Spawner
from posttrain.llm.settings import VARIABLES
from posttrain.research.curves import in_short, read_losses, why_diverged
from posttrain.research.digest import tail
from posttrain.research.nodes import Execution, Failure
from posttrain.research.places import IterationPlaces, remove

Run = Literal["dry_run", "train"]
Ending = Literal["exit", "limit", "diverged", "output"]

_POLL_S = 0.25
_LOOK_S = 2.0
"""Between two looks at the curve."""
_MOST_LOG = 64 << 20
_KEPT_LOG = 1 << 20
"""Of a longer one, when its script is gone."""
_GRACE_S = 3.0
_SECRETS = ("KEY", "TOKEN", "SECRET", "PASSWORD")
_HELD_BACK = frozenset({"GRADING_SERVER_URL", *VARIABLES})
"""Only the loop hands in and asks the driver model: a script with the addresses could do either."""


@dataclass(frozen=True)
class Runner:
    """Starts scripts."""

    spawner: Spawner
    python: Path
    environ: Mapping[str, str]
    seed: int

    def run(self, places: IterationPlaces, run: Run, *, limit_s: float) -> Execution:
        """Run the script of an iteration from the beginning; what an earlier attempt left is removed."""
        log, curve = places.log(run), places.curve(run)
        places.code.mkdir(parents=True, exist_ok=True)
        for old in (log, curve, places.output):
            remove(old)
        places.output.mkdir(parents=True, exist_ok=True)
        began = time.monotonic()
        with self.spawner.spawn(self._command(places, run, limit_s), name=run) as child:
            ended = _watch(child, log=log, curve=curve, deadline=began + limit_s)
            code = child.poll() if ended == "exit" else None
            child.stop(_GRACE_S)
        if _size(log) > _MOST_LOG:
            _cut(log)
        execution = Execution(
            exit_code=code,
            seconds=round(time.monotonic() - began, 3),
            limit_s=round(limit_s, 1),
            ended=ended,
            curve=in_short(read_losses(curve, log)),
            tail=tail(log),
        )
        # what a script prints may be losses of several kinds; with its curve it says which one counts
        return execution.model_copy(
            update={"failure": _failure(execution, why_diverged(read_losses(curve, curve)))}
        )

    def _command(self, places: IterationPlaces, run: Run, limit_s: float) -> Command:
        own = {
            "CHECKPOINT_DIR": str(places.output),
            "OUTPUT_DIR": str(places.output),
            "CURVE_FILE": str(places.curve(run)),
            "TRAIN_SECONDS": str(int(max(1.0, limit_s - 2.0))),
            "DRY_RUN": "1" if run == "dry_run" else "0",
            "SEED": str(self.seed),
            "PYTHONUNBUFFERED": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }
        return Command(
            argv=[str(self.python), places.script.name],
            cwd=places.code,
            env=script_environment(self.environ) | own,
            stdout=places.log(run),
            stderr="stdout",
        )


def script_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The agent's environment without keys and without the addresses of grader and driver model."""
    return {
        name: value
        for name, value in environ.items()
        if name not in _HELD_BACK and not name.upper().endswith(_SECRETS)
    }


def _watch(child: Child, *, log: Path, curve: Path, deadline: float) -> Ending:
    """Until the script ends by itself, or there is a reason to end it."""
    look = time.monotonic() + _LOOK_S
    while child.wait(max(0.0, min(_POLL_S, deadline - time.monotonic()))) is None:
        now = time.monotonic()
        if now >= deadline:
            return "limit"
        if _size(log) > _MOST_LOG:
            return "output"
        if now >= look:
            look = now + _LOOK_S
            if why_diverged(read_losses(curve, curve)):
                return "diverged"
    return "exit"


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _cut(log: Path) -> None:
    """Keep the end of an endless log."""
    with suppress(OSError), log.open("r+b") as file:
        file.seek(-_KEPT_LOG, os.SEEK_END)
        end = file.read(_KEPT_LOG)
        file.seek(0)
        file.write(end)
        file.truncate()


def _failure(run: Execution, diverged: str | None) -> Failure | None:
    """What is wrong with a run; a dry run at its limit has shown no fault."""
    if diverged is not None:
        return Failure(fault="diverged", text=f"training diverged: {diverged}")
    if run.ended == "output":
        return Failure(fault="crash", text=f"more than {_MOST_LOG >> 20} MiB of output")
    if run.ended == "exit" and run.exit_code != 0:
        last = next((line for line in reversed(run.tail.split("\n")) if line.strip()), "no output")
        return Failure(fault="crash", text=f"exit code {run.exit_code}: {last.strip()[:500]}")
    return None
