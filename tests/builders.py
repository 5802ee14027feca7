"""Small complete values of the core models, for tests that are about what is done with them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from posttrain.core.engine import NumericPlan, PromptSettings
from posttrain.core.grading import Grade, Verdict
from posttrain.core.runs import ModelPlan, Result, RunPlan, RunRecord, RunRequest, Status, TaskPlan
from posttrain.core.scores import Improvement, Metric, Score
from posttrain.core.specs import GenerationSettings
from posttrain.core.statistics import binary_standard_error, wilson

START = datetime(2026, 2, 11, 14, 30, tzinfo=UTC).timestamp()


def score(value: float, *, n: int = 500, **changes: Any) -> Score:
    """A score of 0/1 items."""
    share = value / 100
    low, high = wilson(share * n, n)
    values: dict[str, Any] = {
        "metric": Metric(),
        "value": value,
        "n": n,
        "stderr": 100 * binary_standard_error(share, n),
        "ci95": (100 * low, 100 * high),
    }
    return Score(**(values | changes))


def improvement(value: float, *, n: int = 500) -> Improvement:
    return Improvement(
        value=value, ci95=(value - 4.5, value + 4.5), p_value=0.001, n=n, method="bonett-price"
    )


def iso(seconds: float) -> str:
    """ISO 8601 of a time so many seconds after START."""
    return datetime.fromtimestamp(START + seconds, UTC).isoformat()


def grade(number: int, value: float | None, *, at: float, baseline: float = 45.0, **changes: Any) -> Grade:
    """A grade; without a value it is `unloadable` unless `status` says otherwise."""
    values: dict[str, Any] = {
        "submission_id": number,
        "timestamp": iso(at),
        "model_path": f"output/v{number}",
        "status": Verdict.GRADED if value is not None else Verdict.UNLOADABLE,
        "split": "val",
        "score": score(value) if value is not None else None,
        "baseline_score": baseline,
        "improvement": improvement(value - baseline) if value is not None else None,
        "digest": f"{number:064x}",
        "elapsed_seconds": 12.5,
    }
    if value is None:
        values |= {"error": "no weights", "hint": "save the model"}
    return Grade(**(values | changes))


def plan(run_id: str = "20260211T143000-123_recipe", **request: Any) -> RunPlan:
    asked = {
        "agent": "recipe",
        "task": "boolean",
        "model": "smollm2-135m",
        "timeout_s": 600.0,
        "seed": 7,
    } | request
    return RunPlan(
        run_id=run_id,
        request=RunRequest(**asked),
        version="0.1.0",
        libraries={"torch": "2.13.0"},
        task=TaskPlan(id=asked["task"], digest="t" * 64, val=("a", "b"), test=("c", "d"), visible=20000),
        model=ModelPlan(id=asked["model"], folder="models/x", digest="m" * 64, source="pypi"),
        agent_digest="a" * 64,
        prompt=PromptSettings(style="chat", template="{question}", answer_template="{answer}"),
        generation=GenerationSettings(),
        stop_token_ids=(2,),
        numeric=NumericPlan(engine="transformers"),
        isolation="none",
        kill="namespace",
        network="host",
        rules_hash="r" * 64,
        seed=asked["seed"],
        host="box",
        gpus=(),
        env_names=("PATH",),
        port=5000,
        created=iso(-60),
    )


def result(**changes: Any) -> Result:
    values: dict[str, Any] = {
        "split": "test",
        "submission_id": 2,
        "score": score(65.4),
        "baseline": score(44.6),
        "improvement": improvement(20.8),
        "val_score": 68.0,
        "val_baseline": 45.0,
        "overfit": improvement(2.2),
        "selection": "best_val",
    }
    return Result(**(values | changes))


def record(run_id: str = "20260211T143000-123_recipe", **changes: Any) -> RunRecord:
    values: dict[str, Any] = {
        "run_id": run_id,
        "plan_digest": "p" * 64,
        "status": Status.COMPLETED,
        "started": iso(0),
        "ended": iso(500),
        "duration_s": 480.9,
        "agent_exit": 0,
        "result": result(),
        "val_baseline": score(45.0, constant_guess=52.0),
        "test_baseline": score(44.6),
        "marks": ("isolation: none",),
        "ledger_head": "h" * 64,
        "ledger_rows": 20,
    }
    return RunRecord(**(values | changes))
