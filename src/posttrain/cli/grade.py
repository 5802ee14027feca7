"""`posttrain grade`: the score of a model folder, outside any run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from posttrain.cli.context import ENGINE_HELP, open_lab
from posttrain.cli.output import points, print_json, printable, warn
from posttrain.cli.terminal import Console
from posttrain.core.errors import InfrastructureError, PluginError, SubmissionFault, UsageError
from posttrain.infra.durations import parse_duration

if TYPE_CHECKING:
    from posttrain.runs.standalone import FolderGrade, GradeRequest


def grade(
    task: Annotated[str, typer.Option("--task", "-t", help="Task, or task:variant.")],
    model_path: Annotated[Path, typer.Option("--model-path", help="Folder with a whole model.")],
    base: Annotated[
        str | None,
        typer.Option(help="Grade as a run on this base would: only tensors are taken from the folder."),
    ] = None,
    split: Annotated[Literal["test", "val", "all"], typer.Option(help="Which items.")] = "test",
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first N items of each split.")] = None,
    engine: Annotated[
        Literal["auto", "transformers", "vllm", "scripted"], typer.Option(help=ENGINE_HELP)
    ] = "auto",
    split_salt: Annotated[
        Literal["public", "private"], typer.Option(help="Key of the splits: shared by all labs, or your own.")
    ] = "public",
    grading_timeout: Annotated[str, typer.Option(help="Limit of the grading.")] = "2h",
    show: Annotated[
        tuple[str, int], typer.Option(metavar="wrong N", help="Also show N items that were judged wrong.")
    ] = ("", 0),
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")] = False,
) -> int:
    """Grade a model folder outside any run.

    The same worker, prompt and evaluator as in a run. Exit code 1 if the folder could not be graded: then
    there is an error and no score.
    """
    from posttrain.runs.standalone import GradeRequest, grade_folder

    request = GradeRequest(
        task=task,
        model_path=model_path.absolute(),
        base=base,
        split=split,
        limit=limit,
        engine=engine,
        split_salt=split_salt,
        timeout_s=parse_duration(grading_timeout, field="--grading-timeout"),
    )
    wrong = _wrong_wanted(show)
    lab = open_lab(writable=True)
    try:
        graded = grade_folder(request, lab=lab, terminal=Console(beside_json=as_json))
    except (SubmissionFault, InfrastructureError, PluginError) as error:
        hint = getattr(error, "hint", "") if isinstance(error, SubmissionFault) else ""
        if as_json:
            print_json(_head(request) | {"score": None, "accuracy_summary": {}, "error": str(error)})
        warn(f"not graded: {error}. {hint}".strip())
        return 1
    if as_json:
        print_json(_as_data(request, graded, wrong))
    else:
        _print(graded, wrong)
    return 0


def _wrong_wanted(show: tuple[str, int]) -> int:
    kind, count = show
    if kind not in {"", "wrong"} or count < 0:
        raise UsageError(f"--show: {kind} {count} is not understood; write --show wrong N")
    return count


def _head(request: GradeRequest) -> dict[str, Any]:
    return {"benchmark": request.task, "model_path": str(request.model_path)}


def _as_data(request: GradeRequest, graded: FolderGrade, wrong: int) -> dict[str, Any]:
    """AutoRL-Bench's EvalResult and, after it, what it did not have."""
    score = graded.assessment.evaluation.score
    right = sum(record.result.value for record in graded.records)
    summary = {score.metric.name: score.value, "correct": right, "total": score.n, **score.secondary}
    data = _head(request) | {
        "score": score.value,
        "accuracy_summary": summary,
        "eval_type": graded.task.evaluator,
        "split": request.split,
        "n": score.n,
        "ci95": score.ci95,
        "details": score,
        "load": graded.assessment.load,
        "generation_s": graded.assessment.generation_s,
        "total_s": graded.assessment.total_s,
    }
    return data | ({"wrong": _wrong(graded, wrong)} if wrong else {})


def _wrong(graded: FolderGrade, count: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for item, record in zip(graded.items, graded.records, strict=True):
        if record.result.value < 1.0 and len(found) < count:
            found.append(
                {
                    "id": item.id,
                    "fields": item.fields,
                    "texts": [output.text for output in record.outputs],
                    "read_as": record.result.extracted,
                    "rule": record.result.rule,
                    "reason": record.result.reason,
                }
            )
    return found


def _print(graded: FolderGrade, wrong: int) -> None:
    score, load = graded.assessment.evaluation.score, graded.assessment.load
    print(f"{graded.task.id}: {points(score.value)} [{points(score.ci95[0])}, {points(score.ci95[1])}]")
    print(f"  {score.metric.name} on {score.n} items, 95 % interval")
    for name, value in score.secondary.items():
        print(f"  {name.replace('_', ' ')}: {points(value)}")
    if score.constant_guess is not None:
        print(f"  best constant answer: {points(score.constant_guess)}")
    if score.cut_share:
        print(f"  cut off by the length limit: {100 * score.cut_share:.1f} %")
    for line in (*score.warnings, *((*load.repairs, *load.notes) if load else ())):
        print(printable(f"  {line}"))
    print(f"  {graded.assessment.total_s:.1f} s, {graded.assessment.generation_s:.1f} s of it generation")
    for entry in _wrong(graded, wrong):
        _print_wrong(entry)


def _print_wrong(entry: dict[str, Any]) -> None:
    read = "no answer in it" if entry["read_as"] is None else f"read as {entry['read_as']!r}"
    by = f" (rule {entry['rule']})" if entry["rule"] else ""
    print(printable(f"\n{entry['id'][:12]}  {read}{by}"))
    for name, value in entry["fields"].items():
        print(printable(f"  {name}: {value}"))
    for text in entry["texts"]:
        print(printable(f"  said: {text}"))
    if entry["reason"]:
        print(printable(f"  reason: {entry['reason']}"))
