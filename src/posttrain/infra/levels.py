"""Which isolation this machine can give, found out by trying."""

from __future__ import annotations

import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from posttrain.core.errors import InfrastructureError, UsageError
from posttrain.infra.processes import Command, KillMode, Spawner, why_no_namespace
from posttrain.infra.sandbox import Isolation, View, choose_uid, hand_over

_TRIAL_S = 60.0
_TRIAL = "import pathlib, posttrain; pathlib.Path('written').write_text(posttrain.__name__)"


@dataclass(frozen=True)
class Levels:
    """What works here; a reason in one line stands for what does not."""

    kill_mode: KillMode
    why_no_bwrap: str | None
    """None: `--sandbox bwrap` works."""

    @property
    def best(self) -> Isolation:
        """What `--sandbox auto` picks."""
        return "none" if self.why_no_bwrap else "bwrap"


def probe_levels(spawner: Spawner) -> Levels:
    """Start a small Python program the way an agent is started at level `bwrap`; takes about 0.2 s."""
    mode = spawner.kill_mode
    if mode == "best-effort":
        return Levels(kill_mode=mode, why_no_bwrap=why_no_namespace() or "pid namespaces are not in use")
    with tempfile.TemporaryDirectory(prefix="posttrain-") as folder:
        try:
            why_not = _trial(spawner, Path(folder).resolve())
        except (UsageError, InfrastructureError) as error:
            why_not = str(error)
    return Levels(kill_mode=mode, why_no_bwrap=why_not)


def _trial(spawner: Spawner, folder: Path) -> str | None:
    workspace, log = folder / "workspace", folder / "log"
    workspace.mkdir()
    uid = choose_uid(folder.name) if os.getuid() == 0 else None
    if uid is not None:
        hand_over(workspace, uid)
    view = View.allow_list(home=Path("/home/agent"), uid=uid, network="none", writable=[workspace])
    command = Command(
        argv=[sys.executable, "-c", _TRIAL], cwd=workspace, env={"PATH": os.defpath}, stdout=log, view=view
    )
    with spawner.spawn(command, name="isolation trial") as child:
        code = child.wait(_TRIAL_S)
    if code == 0 and (workspace / "written").exists():
        return None
    lines = log.read_text("utf-8", "replace").split("\n")
    last = next((line for line in reversed(lines) if line.strip()), "it said nothing")
    return f"Python does not run as another user inside a view (exit code {code}): {last}"
