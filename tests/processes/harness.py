"""A harness in a process of its own, to be killed: `harness.py MODE FOLDER KIND`, the mark in CHILD_MARK."""

import os
import sys
from pathlib import Path

from posttrain.infra.processes import Command, Spawner

mode, folder, kind = sys.argv[1:]
script = Path(__file__).parent / "hostile" / f"{kind}.sh"
env = {"PATH": os.environ["PATH"], "HOME": folder, "POSTTRAIN_TEST_MARK": os.environ["CHILD_MARK"]}
with Spawner(kill_mode=mode) as spawner:
    command = Command(argv=["bash", str(script)], cwd=Path(folder), env=env, stdout=Path(folder, "log"))
    spawner.spawn(command, name=kind).wait()
