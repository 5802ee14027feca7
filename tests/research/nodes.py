"""Small nodes for tables."""

from __future__ import annotations

from typing import Any

from posttrain.llm.messages import Usage
from posttrain.research.nodes import Decision, Execution, Failure, Fault, Graded, Node


def graded(
    score: float, *, number: int = 1, half: float = 5.0, baseline: float = 50.0, **changes: Any
) -> Graded:
    values: dict[str, Any] = {
        "submission_id": number,
        "model_path": f"output/n{number:03}",
        "score": score,
        "ci95": (score - half, score + half),
        "baseline": baseline,
        "improvement": score - baseline,
        "improvement_ci95": (score - baseline - half, score - baseline + half),
        "n": 250,
    }
    return Graded(**(values | changes))


def node(number: int, kind: str = "draft", parent: int | None = None, **changes: Any) -> Node:
    """A node; `score` makes it graded, `kept` the best, `fault` a failure."""
    score, kept = changes.pop("score", None), changes.pop("kept", False)
    fault: Fault | None = changes.pop("fault", None)
    values: dict[str, Any] = {
        "number": number,
        "kind": kind,
        "parent": parent,
        "idea": {"hypothesis": f"idea {number}"},
        "files": {} if fault in ("answer", "server", "time") else {"train.py": "d"},
        "training": Execution(exit_code=0, seconds=10, limit_s=60, ended="exit"),
        "grade": None if score is None else graded(score, number=number),
        "decision": Decision(kept=kept, by="numbers", reason="r"),
        "failure": None if fault is None else Failure(fault=fault, text=f"{fault} happened"),
        "usage": Usage(calls=3, input_tokens=100, output_tokens=10, cost=0.01),
        "seconds": {
            "propose": 5.0,
            "build": 10.0,
            "dry_run": 8.0,
            "train": 30.0,
            "grade": 12.0,
            "review": 4.0,
        },
        "started": "2026-02-11T14:30:00+00:00",
        "ended": "2026-02-11T14:31:00+00:00",
    }
    return Node(**(values | changes))
