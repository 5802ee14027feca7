"""`posttrain show`: one run on one page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, NamedTuple, TypeVar

import typer
from pydantic import BaseModel, ValidationError

from posttrain.cli.context import find_run, open_lab
from posttrain.cli.journal import show_journal
from posttrain.cli.output import (
    gain,
    one_line,
    points,
    print_json,
    print_table,
    printable,
    trained_and_prompted,
)
from posttrain.core.errors import LedgerError, PosttrainError
from posttrain.core.grading import Grade
from posttrain.core.paths import RunPaths
from posttrain.core.runs import Result, RunPlan, RunRecord, RunRequest, Status
from posttrain.core.scores import Score
from posttrain.grading.ledger import read_rows
from posttrain.infra.durations import format_duration
from posttrain.runs.history import Word
from posttrain.runs.reporting import told
from posttrain.runs.words import read_word

_SELECTIONS = {
    "final": "marked final",
    "best_val": "best on validation",
    "last": "last graded",
    "best_test": "best on test, which flatters",
}
_T = TypeVar("_T", bound=BaseModel)


class Shown(NamedTuple):
    """What the files of a run say; the plan and the record may not exist yet."""

    paths: RunPaths
    request: RunRequest
    plan: RunPlan | None
    record: RunRecord | None
    grades: tuple[Grade, ...]
    word: Word | None
    """An operator's."""


def show(
    run: Annotated[str, typer.Argument(help="Id or folder of the run.")],
    journal: Annotated[
        bool, typer.Option("--journal", help="The tree of a research loop's iterations instead.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")] = False,
) -> None:
    """Show one run: what was asked, what happened, every submission."""
    paths = find_run(open_lab().paths, run)
    if journal:
        show_journal(paths, as_json=as_json)
        return
    shown = read_run(paths)
    if as_json:
        print_json(as_data(shown))
    else:
        print_run(shown)


def read_run(paths: RunPaths) -> Shown:
    """Read the files of a run; PosttrainError names one that is not what it should be."""
    request = read_model(paths.request, RunRequest)
    if request is None:
        raise PosttrainError(f"{paths.request} is missing")
    return Shown(
        paths=paths,
        request=request,
        plan=read_model(paths.plan, RunPlan),
        record=read_model(paths.record, RunRecord),
        grades=_grades(paths),
        word=read_word(paths),
    )


def read_model(path: Path, kind: type[_T]) -> _T | None:
    """What a file of a run holds, None where there is none; PosttrainError for anything else."""
    try:
        return kind.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise PosttrainError(f"{path} cannot be read: {str(error).splitlines()[0]}") from error


def _grades(paths: RunPaths) -> tuple[Grade, ...]:
    """Every verdict, in order of the submissions, as the ledger has it."""
    if not paths.ledger.exists():
        return ()
    try:
        rows = [row for row in read_rows(paths.ledger) if row.kind == "graded"]
        grades = [Grade.model_validate(row.data) for row in rows]
    except OSError as error:
        raise LedgerError(f"{paths.ledger}: {error.strerror}") from error
    except ValidationError as error:
        raise LedgerError(f"{paths.ledger}: a graded row is no grade: {error.errors()[0]['msg']}") from error
    return tuple(sorted(grades, key=lambda grade: grade.submission_id))


def as_data(shown: Shown) -> dict[str, object]:
    """The run as one JSON document."""
    paths = shown.paths
    return {
        "run_id": paths.run_id,
        "status": (shown.record.status if shown.record else Status.RUNNING).value,
        "folder": str(paths.root),
        "workspace": str(paths.workspace.root),
        "figure": str(figure) if (figure := _figure(paths)) else None,
        "request": shown.request,
        "plan": shown.plan,
        "record": shown.record,
        "submissions": list(shown.grades),
        "verdict": shown.word,
    }


def print_run(shown: Shown) -> None:
    """The run for people: facts, the result, the table of submissions, where its files lie."""
    facts = [*told_facts(shown), *_places(shown.paths)]
    width = max(len(name) for name, _ in facts) + 2
    for name, text in facts:
        print(f"{name:<{width}}{printable(text)}")
    if shown.grades:
        print()
        _print_submissions(shown)


def told_facts(shown: Shown) -> Iterator[tuple[str, str]]:
    """What was asked and what came of it, name and text; nothing about places on this machine."""
    record, request = shown.record, shown.request
    yield "run", f"{shown.paths.run_id}, {(record.status if record else Status.RUNNING).value}"
    yield "asked", _asked(request)
    if record is not None:
        yield from _outcome(record, request)
    if shown.word is not None:
        said = "accepted" if shown.word.accepted else "rejected"
        yield "verdict", f"{said} by {shown.word.by}: {shown.word.why}"


def _places(paths: RunPaths) -> Iterator[tuple[str, str]]:
    yield "folder", str(paths.root)
    if figure := _figure(paths):
        yield "figure", str(figure)


def _asked(request: RunRequest) -> str:
    parts = [
        f"{request.agent} on {request.task} with {request.model}",
        f"budget {format_duration(request.timeout_s)}",
        f"{request.protocol} protocol",
        f"seed {request.seed}",
    ]
    if request.limit is not None:
        parts.append(f"limited to {request.limit} items")
    return ", ".join(parts)


def _outcome(record: RunRecord, request: RunRequest) -> Iterator[tuple[str, str]]:
    if record.reason:
        yield "reason", record.reason
    yield from _result(record.result)
    yield "format", trained_and_prompted(record)
    yield "time", _times(record, request)
    if any(record.verdicts.values()):
        yield "verdicts", ", ".join(f"{name} {count}" for name, count in record.verdicts.items() if count)
    if record.report is not None:
        yield "report", told(record.report)
    yield "marks", ", ".join(record.marks) or "none"
    yield "ledger", f"{record.ledger_rows} rows, head {record.ledger_head}"


def _result(result: Result | None) -> Iterator[tuple[str, str]]:
    if result is None:
        yield "result", "not scored"
        return
    improved = result.improvement
    certain = f", p = {improved.p_value:.2g}" if improved.p_value is not None else ""
    yield "result", f"{score_text(result.score)} on {result.score.n} {result.split} items"
    yield "baseline", score_text(result.baseline)
    yield "improvement", f"{gain(improved.value, improved.ci95)} points{certain}"
    yield from _beside(result)
    yield "selected", _selected(result)


def _beside(result: Result) -> Iterator[tuple[str, str]]:
    """What keeps a gain in format from being sold as more."""
    if result.score.constant_guess is not None:
        yield "constant", f"{points(result.score.constant_guess)} for the best constant answer"
    for name, value in result.score.secondary.items():
        before = result.baseline.secondary.get(name)
        yield name.replace("_", " "), f"{points(before) or '?'} before, {points(value)} after"


def _selected(result: Result) -> str:
    text = f"submission {result.submission_id}, {_SELECTIONS[result.selection]}"
    if result.val_score is not None:
        text += f" ({points(result.val_score)}"
        if result.overfit is not None:
            text += f"; over-fit {gain(result.overfit.value, result.overfit.ci95)}"
        text += ")"
    return text


def score_text(score: Score) -> str:
    """A score with its interval."""
    return f"{points(score.value)} [{points(score.ci95[0])}, {points(score.ci95[1])}]"


def _times(record: RunRecord, request: RunRequest) -> str:
    text = f"{format_duration(record.duration_s)} of {format_duration(request.timeout_s)} used"
    if record.stopped_at_deadline:
        text += ", stopped at the deadline"
    elif record.agent_exit is not None:
        text += f", agent exit {record.agent_exit}"
    if record.grading_wait_s >= 0.5:
        text += f", {format_duration(record.grading_wait_s)} of it waiting for grades"
    return text


def _print_submissions(shown: Shown) -> None:
    start = shown.record.started if shown.record else shown.grades[0].timestamp
    print_table(
        SUBMISSION_COLUMNS,
        [
            [one_line(cell) for cell in submission_line(grade, start, shown.paths.workspace.root)]
            for grade in shown.grades
        ],
        right=SUBMISSION_NUMBERS,
    )


SUBMISSION_COLUMNS = ("id", "at", "status", "score", "interval", "improvement", "path", "remarks")
SUBMISSION_NUMBERS = ("id", "at", "score")


def submission_line(grade: Grade, start: str, workspace: Path) -> Sequence[str]:
    """The cells of one submission; `start` is the beginning of the budget."""
    at = datetime.fromisoformat(grade.timestamp) - datetime.fromisoformat(start)
    score, improved = grade.score, grade.improvement
    return (
        str(grade.submission_id),
        format_duration(at.total_seconds()),
        grade.status.value,
        points(score.value if score else None),
        f"[{points(score.ci95[0])}, {points(score.ci95[1])}]" if score else "",
        gain(improved.value, improved.ci95) if improved else "",
        grade.model_path.removeprefix(f"{workspace}/"),
        "; ".join(_remarks(grade)),
    )


def _remarks(grade: Grade) -> Iterator[str]:
    if grade.same_as is not None:
        yield f"same content as {grade.same_as}"
    if grade.final:
        yield "final"
    yield from grade.flags
    if grade.error:
        yield grade.error
    if grade.note:
        yield grade.note


def _figure(paths: RunPaths) -> Path | None:
    return next(iter(sorted(paths.figures.glob("score_trajectory.*"), reverse=True)), None)
