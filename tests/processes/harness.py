"""A harness in a process of its own, to be killed: `harness.py MODE FOLDER KIND`, the mark in CHILD_MARK.

MODE is a kill mode, or `view` for a namespace with a view of level bwrap.
"""

import os
import sys
from pathlib import Path

from posttrain.infra.processes import Command, Spawner
from posttrain.infra.sandbox import View, choose_uid, hand_over

mode, name, kind = sys.argv[1:]
folder = Path(name)
script = Path(__file__).parent / "hostile" / f"{kind}.sh"
env = {"PATH": os.environ["PATH"], "HOME": name, "POSTTRAIN_TEST_MARK": os.environ["CHILD_MARK"]}
view = View.host()
if mode == "view":
    uid = choose_uid(name) if os.getuid() == 0 else None
    if uid is not None:
        hand_over(folder, uid)
    view = View.allow_list(
        home=Path("/home/agent"), uid=uid, network="none", writable=[folder], readable=[script.parent]
    )
with Spawner(kill_mode="best-effort" if mode == "best-effort" else "namespace") as spawner:
    command = Command(argv=["bash", str(script)], cwd=folder, env=env, stdout=folder / "log", view=view)
    spawner.spawn(command, name=kind).wait()
