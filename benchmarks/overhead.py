"""What the harness itself costs: around an agent, and around each submission.

    python benchmarks/overhead.py [--runs 5] [--submissions 200] [--out overhead.json]

Two measurements on the scripted engine with a cached baseline, so that nothing but the harness is timed:
1. `noop`: command start to agent start, agent end to record.json, medians over the runs.
2. Different checkpoints of about 1 MB, one waiting at a time: what a client waits beyond the time from the
   accepted row to the grade (that is: request read to row durable, and result to answer received), its 95th
   percentile; and the resident memory of the harness after a quarter and after all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path

from posttrain.core.paths import LabPaths, RunPaths
from posttrain.testing.agents import write_toy_agent
from posttrain.testing.tiny import fine_tuned, tiny_model

AGENT = """
import json, os, time, urllib.request
from pathlib import Path
workspace, url = Path(os.environ["WORKSPACE"]), os.environ["GRADING_SERVER_URL"]
for number in range({count}):
    folder = workspace / "output" / f"v{{number}}"
    folder.mkdir()
    for source in Path({pool!r}).iterdir():
        (folder / source.name).write_bytes(source.read_bytes())
    (folder / "scripted.json").write_text(json.dumps({{"accuracy": 0.5, "seed": number}}))
    weights = folder / "model.safetensors"
    raw = bytearray(weights.read_bytes())
    raw[-4 * (number + 1)] ^= 1
    weights.write_bytes(raw)
    body = json.dumps({{"model_path": str(folder)}}).encode()
    asked = urllib.request.Request(url + "/submit", body, {{"Content-Type": "application/json"}})
    begun = time.monotonic()
    answer = json.load(urllib.request.urlopen(asked))
    waited = time.monotonic() - begun
    with (workspace / "code" / "waits.jsonl").open("a") as file:
        print(json.dumps({{"waited_s": waited, "elapsed_s": answer["elapsed_seconds"]}}), file=file)
"""


def command(base: Path, agent: str, *options: str) -> list[str]:
    asked = ["run", "--agent", agent, "--task", "boolean", "--model", str(base), "--engine", "scripted"]
    return [sys.executable, "-m", "posttrain", *asked, "--limit", "20", "--port", "0", *options]


def environment(home: Path) -> dict[str, str]:
    return {**os.environ, "POSTTRAIN_HOME": str(home), "HF_HUB_OFFLINE": "1"}


def newest(lab: LabPaths) -> RunPaths:
    return RunPaths(max(lab.runs.glob("*/*"), key=lambda path: path.stat().st_ctime))


def row_times(paths: RunPaths) -> dict[str, float]:
    rows = [json.loads(line) for line in paths.ledger.read_text("utf-8").splitlines()]
    return {row["kind"]: datetime.fromisoformat(row["time"]).timestamp() for row in rows}


def around_an_agent(lab: LabPaths, base: Path, runs: int) -> dict[str, float]:
    before, after = [], []
    for number in range(runs + 1):  # the first one fills the caches
        begun = time.time()
        subprocess.run(
            command(base, "noop", "--timeout", "60"),
            check=True,
            env=environment(lab.home),
            stdout=subprocess.DEVNULL,
        )
        paths = newest(lab)
        times = row_times(paths)
        if number:
            before.append(times["started"] - begun)
            after.append(paths.record.stat().st_mtime - times["stopped"])
    return {
        "command_start_to_agent_start_s": statistics.median(before),
        "agent_end_to_record_s": statistics.median(after),
    }


def around_a_submission(lab: LabPaths, base: Path, pool: Path, count: int) -> dict[str, float]:
    folder = write_toy_agent(lab.agents, "many", [], network="grader", sandbox={"bind": [str(pool)]})
    (folder / "toy.py").write_text(AGENT.format(count=count, pool=str(pool)), "utf-8")
    process = subprocess.Popen(
        command(base, "many", "--timeout", "3h", "--max-submissions", str(count)),
        env=environment(lab.home),
        stdout=subprocess.DEVNULL,
    )
    marks: dict[int, int] = {}
    early = count // 4
    while process.poll() is None:
        graded = _graded(lab)
        for mark in (early, count):
            if graded >= mark and mark not in marks:
                marks[mark] = _resident_bytes(process.pid)
        time.sleep(0.05)
    waits = [json.loads(line) for line in (newest(lab).workspace.code / "waits.jsonl").open()]
    own = [1000 * (wait["waited_s"] - wait["elapsed_s"]) for wait in waits]
    return {
        "submissions": len(waits),
        "harness_ms_median": statistics.median(own),
        "harness_ms_p95": statistics.quantiles(own, n=20)[-1],
        "resident_mb_early": marks[early] / 1e6,
        "resident_mb_late": marks[count] / 1e6,
        "growth_mb": (marks[count] - marks[early]) / 1e6,
        "seconds_a_submission": statistics.median(wait["waited_s"] for wait in waits),
    }


def _graded(lab: LabPaths) -> int:
    try:
        return len(list(newest(lab).grading.glob("[0-9]*/grade.json")))
    except (OSError, ValueError):
        return 0


def _resident_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--submissions", type=int, default=200)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="overhead-") as name:
        lab = LabPaths(Path(name) / "home")
        lab.agents.mkdir(parents=True)
        base = tiny_model(Path(name) / "base", dtype="F32")
        pool = fine_tuned(base, Path(name) / "pool", dtype="F32")
        found = around_an_agent(lab, base, options.runs)
        found |= around_a_submission(lab, base, pool, options.submissions)
    print(json.dumps(found, indent=2))
    if options.out:
        options.out.write_text(json.dumps(found, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
