"""Evaluator `own`: the folder's eval.py asks the checkpoint itself and says what the answers are worth.

`evaluate(items, engine, settings)` asks through `engine`, whose model lies in another process, and returns
one value in [0, 1] an item (then improvements are paired and have intervals), or a whole Score. It is
foreign code: what it raises ends the grading with verdict `error`, never with a 0.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from posttrain.core.engine import Turn
from posttrain.core.errors import PluginError, boundary
from posttrain.core.evaluation import EngineGiven, EngineWanted, ScoringJob
from posttrain.core.scores import Evaluation, Item, ItemResult, Output, Score
from posttrain.evaluators.aggregate import score_of
from posttrain.evaluators.foreign import EVAL, hushed, load_eval, unit_number
from posttrain.evaluators.per_sample import written_answer

Form = Literal["evaluate", "run_eval"]
Asked = Callable[[EngineWanted], EngineGiven]
NO_ITEMS = f"{EVAL} gives one number for all items: the improvement has no interval"


def form_of(folder: Path) -> Form:
    """The form of eval.py, read without running it: `evaluate`, or the ancestor's class with `run_eval`."""
    where = f"{folder.name}/{EVAL}"
    try:
        tree = ast.parse((folder / EVAL).read_bytes(), filename=where)
    except (OSError, SyntaxError, ValueError) as error:
        raise PluginError(f"{where}: cannot be read: {error}") from error
    if any("evaluate" in _bound(node) for node in tree.body):
        return "evaluate"
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    if any(_has_run_eval(each) for each in classes):
        return "run_eval"
    raise PluginError(f"{where}: has neither evaluate(items, engine, settings) nor a class with run_eval")


def _bound(node: ast.stmt) -> list[str]:
    """Names that a statement of a module's top level binds."""
    match node:
        case ast.FunctionDef(name=name):
            return [name]
        case ast.ImportFrom(names=names):
            return [alias.asname or alias.name for alias in names]
        case ast.Assign(targets=targets):
            return [target.id for target in targets if isinstance(target, ast.Name)]
        case _:
            return []


def _has_run_eval(node: ast.ClassDef) -> bool:
    return any(isinstance(part, ast.FunctionDef) and part.name == "run_eval" for part in node.body)


class Engine:
    """What eval.py asks the checkpoint with."""

    def __init__(self, asked: Asked, *, samples: int = 1) -> None:
        self._asked = asked
        self._outputs: list[Output] = []
        self.samples = samples
        """Answers an item."""

    def ask(
        self,
        items: Iterable[Item],
        *,
        turns: Sequence[Sequence[Mapping[str, str]]] | None = None,
        **generation: Any,
    ) -> list[Output]:
        """One Output (`text`, `tokens`, `cut`) for each item; `samples` of them side by side.

        Asked is the pinned prompt, or `turns`: for each item a list of {"role": …, "content": …}.
        `generation` are fields laid over the task's, such as `max_new_tokens=32`.
        """
        asked = tuple(items)
        with boundary(PluginError, "engine.ask"):
            wanted = EngineWanted(
                ids=tuple(item.id for item in asked),
                turns=None if turns is None else tuple(_conversation(each) for each in turns),
                generation=generation,
            )
        if wanted.turns is not None and len(wanted.turns) != len(asked):
            raise PluginError(f"engine.ask: {len(wanted.turns)} conversations for {len(asked)} items")
        given = self._asked(wanted)
        if given.error:
            raise PluginError(f"engine.ask: {given.error}")
        self._outputs += given.outputs
        return list(given.outputs)

    @property
    def cut_share(self) -> float:
        """Share of all answers so far that the length limit ended."""
        return sum(output.cut for output in self._outputs) / max(1, len(self._outputs))


def _conversation(turns: Sequence[Mapping[str, str]]) -> tuple[Turn, ...]:
    return tuple(Turn.model_validate(dict(turn)) for turn in turns)


class OwnEvaluator:
    """Runs the folder's `evaluate(items, engine, settings)`."""

    def __init__(self, job: ScoringJob, asked: Asked) -> None:
        self._job = job
        self._asked = asked

    def evaluate(self, items: Sequence[Item], outputs: Sequence[Output]) -> Evaluation:  # noqa: ARG002
        job, folder = self._job, Path(self._job.folder)
        with hushed() as printed:
            module = load_eval(folder)
            asked = self._asked if job.rehearsal is None else _rehearsed(job, module)
            engine = Engine(asked, samples=job.samples)
            with boundary(PluginError, f"{folder.name}/{EVAL}"):
                value = module.evaluate(tuple(items), engine, dict(job.settings))
        made = evaluation_of(value, items, job)
        told = (*made.score.warnings, *printed.warnings)
        score = made.score.model_copy(update={"warnings": told, "cut_share": engine.cut_share})
        return made.model_copy(update={"score": score})

    def gold(self, item: Item) -> str:
        return written_answer(item)


def _rehearsed(job: ScoringJob, module: ModuleType) -> Asked:
    """An engine that knows all answers, or none; eval.py's own `gold(item)` may say how a right one reads."""
    gold: Callable[[Item], str] = getattr(module, "gold", written_answer)
    items = {item.id: item for item in job.items}

    def answer(wanted: EngineWanted) -> EngineGiven:
        texts = ["" if job.rehearsal == "empty" else str(gold(items[name])) for name in wanted.ids]
        return EngineGiven(
            outputs=tuple(Output(text=text, tokens=0) for text in texts for _ in range(job.samples))
        )

    return answer


def evaluation_of(value: Any, items: Sequence[Item], job: ScoringJob) -> Evaluation:
    """What `evaluate` returned, as an evaluation of the job's items; PluginError for anything else."""
    if isinstance(value, Evaluation):
        return _checked(value.items, items, job, told=value.score)
    if isinstance(value, Score):
        return whole(value.value, items, job, secondary=value.secondary, warnings=value.warnings)
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise PluginError(
            f"{EVAL}: evaluate returned {type(value).__name__}; a Score or one value in [0, 1] an item is "
            "expected"
        )
    values = list(value)
    if len(values) != len(items):
        raise PluginError(f"{EVAL}: evaluate returned {len(values)} values for {len(items)} items")
    return _checked([_result(item, one) for item, one in zip(items, values, strict=True)], items, job)


def whole(
    value: float,
    items: Sequence[Item],
    job: ScoringJob,
    *,
    secondary: Mapping[str, float] | None = None,
    warnings: Sequence[str] = (),
) -> Evaluation:
    """One number in points for all items: each has the same share of it, and no interval is made up."""
    results = [
        ItemResult(id=item.id, value=value / 100, rule="whole", stratum=item.stratum) for item in items
    ]
    score = score_of(results, metric=job.metric, macro=job.macro)
    update = {"secondary": dict(secondary or {}), "warnings": (*score.warnings, NO_ITEMS, *warnings)}
    return Evaluation(score=score.model_copy(update=update), items=tuple(results))


def _result(item: Item, value: Any) -> ItemResult:
    if isinstance(value, ItemResult):
        return value.model_copy(update={"id": item.id, "stratum": item.stratum})
    number = unit_number(value)
    reason = None if number is not None else f"evaluate returned {value!r:.80}, no number in [0, 1]"
    return ItemResult(id=item.id, value=number or 0.0, rule="evaluate", stratum=item.stratum, reason=reason)


def _checked(
    results: Sequence[ItemResult], items: Sequence[Item], job: ScoringJob, *, told: Score | None = None
) -> Evaluation:
    """The score that item results come to; secondary metrics and warnings of eval.py's own stay."""
    if [result.id for result in results] != [item.id for item in items]:
        raise PluginError(f"{EVAL}: evaluate did not answer for exactly the items it was given")
    score = score_of(results, metric=job.metric, macro=job.macro)
    faults = [result.reason for result in results if result.reason]
    warnings = [*score.warnings, *(told.warnings if told else ())]
    if faults:
        warnings.append(f"{len(faults)} of {len(results)} items count as wrong: {faults[0]}")
    secondary = {**score.secondary, **(told.secondary if told else {})}
    update = {"secondary": secondary, "warnings": tuple(warnings)}
    return Evaluation(score=score.model_copy(update=update), items=tuple(results))
