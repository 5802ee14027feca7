"""How long the code evaluator takes: HumanEval's own solutions, and programs that never end. JSON on stdout.

    python benchmarks/code_runner.py HumanEval.jsonl.gz [--endless] [--programs 164] [--workers N]

Exits 1 if a solution fails, if an endless program passes, or if it took longer than it may: 10 s for 164
solutions on two cores, 1.2 times programs x limit / workers for endless ones.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import sys
import time
from pathlib import Path

from posttrain.core.evaluation import ScoringJob
from posttrain.core.scores import Item, Metric, Output
from posttrain.evaluators.code import CodeEvaluator, CodeSettings

SOLUTIONS_S = 10.0 / 164
SLACK = 1.2
ENDLESS = "    while True:\n        pass\n"


def items(path: Path, count: int) -> tuple[Item, ...]:
    lines = gzip.decompress(path.read_bytes()).decode("utf-8").splitlines()[:count]
    rows = [json.loads(line) for line in lines]
    return tuple(
        Item(
            id=row["task_id"],
            fields={
                "question": row["prompt"],
                "prefix": row["prompt"],
                "answer": row["canonical_solution"],
                "entry_point": row["entry_point"],
                "test": row["test"],
            },
        )
        for row in rows
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--endless", action="store_true")
    parser.add_argument("--programs", type=int, default=164)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    asked = parser.parse_args()
    rows = items(asked.data, asked.programs)
    texts = [ENDLESS if asked.endless else str(item.fields["answer"]) for item in rows]
    outputs = tuple(Output(text=text, tokens=0) for text in texts)
    settings = {"workers": asked.workers}
    job = ScoringJob(
        evaluator="code", settings=settings, folder=".", metric=Metric(), items=rows, outputs=outputs
    )
    begun = time.monotonic()
    score = CodeEvaluator(job).evaluate(rows, outputs).score
    took = time.monotonic() - begun
    limit = CodeSettings().limits.wall_s
    bound = SLACK * len(rows) * limit / asked.workers if asked.endless else SOLUTIONS_S * len(rows)
    right = score.value == (0.0 if asked.endless else 100.0)
    told = {
        "programs": len(rows),
        "endless": asked.endless,
        "workers": asked.workers,
        "passed": score.value,
        "seconds": round(took, 2),
        "bound_s": round(bound, 2),
        "load": os.getloadavg()[0],
    }
    print(json.dumps(told))
    return 0 if right and took <= bound else 1


if __name__ == "__main__":
    sys.exit(main())
