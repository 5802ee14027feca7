"""What watching an experiment costs: CPU share of one core and memory of executor and wrapper.

    python benchmarks/watch_cost.py [--seconds 120] [--lines-per-s 1]

Runs a real blueprint whose command prints training values and otherwise sleeps, with the default
intervals, in a tmux session of its own server. Starting up is not counted; everything after is.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from posttrain.blueprints.paths import StatePaths
from posttrain.blueprints.state import experiment_name

_TICKS = os.sysconf("SC_CLK_TCK")
_SETTLED_S = 3.0
_BLUEPRINT = """[exp_purpose] cost of watching
[exp_codebase_dir] {root}
[exp_venv_exe] {python}
[exp_yaml_path] config.yaml
[exp_launch_command]
```bash
# config.yaml
for step in $(seq 100000); do echo "{{'step': $step, 'loss': 0.5}}"; sleep {pause}; done
```
[exp_result_dir] {root}/results
[exp_max_time] {limit}s
"""


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def peak_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def wrapper_of(paths: StatePaths) -> int:
    """The wrapper's pid, once it has reported."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if paths.attempt(1).status.exists():
            return int(json.loads(paths.attempt(1).status.read_text())["wrapper_pid"])
        time.sleep(0.1)
    raise SystemExit("the wrapper did not start")


def measure(root: Path, *, seconds: float, lines_per_s: float) -> dict[str, float]:
    (root / "config.yaml").write_text("a: 1\n")
    source = root / "blueprint.md"
    limit = int(seconds + 60)
    source.write_text(_BLUEPRINT.format(root=root, python=sys.executable, pause=1 / lines_per_s, limit=limit))
    env = {**os.environ, "POSTTRAIN_HOME": str(root / "home"), "TMUX_TMPDIR": str(root)}
    command = [sys.executable, "-m", "posttrain", "blueprint"]
    executor = subprocess.Popen(
        [*command, "run", str(source)], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        wrapper = wrapper_of(StatePaths(root / "home" / "blueprints" / experiment_name(source)))
        time.sleep(_SETTLED_S)
        began, before = time.monotonic(), {pid: cpu_s(pid) for pid in (executor.pid, wrapper)}
        time.sleep(seconds)
        passed = time.monotonic() - began
        share = {pid: 100 * (cpu_s(pid) - before[pid]) / passed for pid in before}
        return {
            "seconds": round(passed, 1),
            "executor_cpu_percent": round(share[executor.pid], 3),
            "wrapper_cpu_percent": round(share[wrapper], 3),
            "together_cpu_percent": round(sum(share.values()), 3),
            "executor_peak_mb": round(peak_mb(executor.pid), 1),
            "wrapper_peak_mb": round(peak_mb(wrapper), 1),
        }
    finally:
        subprocess.run([*command, "stop", str(source)], env=env, stdout=subprocess.DEVNULL, check=False)
        executor.wait(60)
        subprocess.run(["tmux", "kill-server"], env=env, stderr=subprocess.DEVNULL, check=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--lines-per-s", type=float, default=1.0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pt-watch-") as folder:
        result = measure(Path(folder), seconds=arguments.seconds, lines_per_s=arguments.lines_per_s)
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
