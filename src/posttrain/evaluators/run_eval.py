"""Evaluator `own` in the ancestor's form: a class with `run_eval(model_path, workspace_path, **kwargs)`.

It loads the checkpoint itself and returns {"score": points, "accuracy_summary": {…}}. A missing score, or an
`error`, is an error of ours and never a 0.
"""

from __future__ import annotations

import importlib.util
import inspect
import math
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from posttrain.core.errors import PluginError, boundary
from posttrain.core.evaluation import ScoringJob
from posttrain.core.scores import Evaluation, Item, Output
from posttrain.evaluators.foreign import EVAL, hushed, load_eval
from posttrain.evaluators.own import whole
from posttrain.evaluators.per_sample import written_answer
from posttrain.infra.files import write_jsonl

_ANCESTOR = "rdagent.scenarios.rl.autorl_bench.core"


class RunEvalEvaluator:
    """Runs the folder's class on a complete checkpoint; its workspace holds the rows in data/test.jsonl."""

    def __init__(self, job: ScoringJob) -> None:
        self._job = job

    def evaluate(self, items: Sequence[Item], outputs: Sequence[Output]) -> Evaluation:  # noqa: ARG002
        job, folder = self._job, Path(self._job.folder)
        where = f"{folder.name}/{EVAL}"
        if job.model is None:
            raise PluginError(f"{where}: run_eval needs a checkpoint")
        _offer_base_class()
        with tempfile.TemporaryDirectory() as place, hushed() as printed, boundary(PluginError, where):
            (Path(place) / "data").mkdir()
            write_jsonl(Path(place) / "data" / "test.jsonl", [item.fields for item in items])
            evaluator = _made(_class_of(load_eval(folder), where), job)
            result = evaluator.run_eval(job.model, place, **_accepted(evaluator.run_eval, job.model))
        value, summary = read_result(result, where=where)
        return whole(value, items, job, secondary=summary, warnings=printed.warnings)

    def gold(self, item: Item) -> str:
        return written_answer(item)


class BaseEvaluator:
    """Stands in for the ancestor's base class where that package is not installed."""

    def validate_model(self, model_path: str) -> bool:
        """Whether there is something at `model_path`."""
        return Path(model_path).exists()

    def get_default_result(self, benchmark_name: str, model_path: str) -> dict[str, Any]:
        """A result that nobody has filled in: without a score, for that would be a 0."""
        return {"benchmark": benchmark_name, "model_path": model_path, "accuracy_summary": {}}


def _offer_base_class() -> None:
    """Let `from rdagent.scenarios.rl.autorl_bench.core import BaseEvaluator` work without that package."""
    if "rdagent" in sys.modules or importlib.util.find_spec("rdagent") is not None:
        return
    parts = _ANCESTOR.split(".")
    names = [".".join(parts[: depth + 1]) for depth in range(len(parts))]
    for name in (*names, f"{_ANCESTOR}.evaluator"):
        module = ModuleType(name)
        module.__path__ = []
        vars(module).update(BaseEvaluator=BaseEvaluator, EvalResult=dict)
        sys.modules[name] = module


def _class_of(module: ModuleType, where: str) -> type[Any]:
    """The one class of eval.py that has a run_eval."""
    found = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and value.__module__ == module.__name__ and hasattr(value, "run_eval")
    ]
    if len(found) != 1:
        names = ", ".join(each.__name__ for each in found) or "none"
        raise PluginError(f"{where}: one class with run_eval is expected, found {names}")
    return found[0]


def _made(kind: type[Any], job: ScoringJob) -> Any:
    """An instance, given what the ancestor's registry would give it if it asks for a config."""
    name = Path(job.folder).name
    config = SimpleNamespace(
        id=name,
        evaluator_class=f"{name}.{kind.__name__}",
        data_module="",
        description="",
        eval_config=dict(job.settings),
        expose_files=[],
        bench_dir=job.folder,
    )
    parameters = inspect.signature(kind).parameters.values()
    wanted = any(
        parameter.default is parameter.empty and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
        for parameter in parameters
    )
    return kind(config) if wanted else kind()


def _accepted(function: Callable[..., Any], model: str) -> dict[str, Any]:
    """The ancestor's further arguments, as far as the function takes them."""
    offered = {"model_name": Path(model).name, "gpu_count": 1, "test_range": "[:]"}
    parameters = inspect.signature(function).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return offered
    return {name: value for name, value in offered.items() if name in parameters}


def read_result(result: Any, *, where: str) -> tuple[float, dict[str, float]]:
    """Score in points and the numbers of the summary; PluginError for what is no result."""
    if not isinstance(result, Mapping):
        raise PluginError(f"{where}: run_eval returned {type(result).__name__}, a dict is expected")
    if result.get("error"):
        raise PluginError(f"{where}: run_eval: {str(result['error'])[:500]}")
    score: Any = result.get("score")
    if not _is_number(score):
        raise PluginError(f"{where}: run_eval returned no score (score: {score!r:.80})")
    if not 0.0 <= score <= 100.0:
        raise PluginError(f"{where}: run_eval returned the score {score}, not one from 0 to 100")
    summary = result.get("accuracy_summary")
    numbers = summary.items() if isinstance(summary, Mapping) else ()
    return float(score), {str(name): float(value) for name, value in numbers if _is_number(value)}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
