"""results.csv: one row a run, written once it is over, and the table that people read it as."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Annotated, NamedTuple

from filelock import FileLock
from pydantic import BeforeValidator, ValidationError

from posttrain.core.frozen import Frozen
from posttrain.core.grading import Grade
from posttrain.core.runs import RunPlan, RunRecord
from posttrain.infra.files import write_atomic

_LOCK_TIMEOUT_S = 60.0
_LARGEST = 1e12
"""No points and no seconds reach it; squares of greater numbers would overflow."""
_MOST_LINES = 20
"""Lines of one row, whose cells may hold line ends; more is a quotation that was never closed."""
DRIVER_VARIABLES = ("LLM_MODEL", "CHAT_MODEL", "OPENAI_MODEL")
TIME_FORMAT = "%Y-%m-%d %H:%M:%S"


def _number(value: object) -> object:
    """An empty or unreadable cell is no number; nor is nan, which an older file may hold, or a huge one."""
    if not isinstance(value, str):
        return value
    try:
        number = float(value)
    except ValueError:
        return None
    return number if abs(number) < _LARGEST else None  # False for nan


def _whole(value: object) -> object:
    number = _number(value)
    return int(number) if isinstance(number, float) else number


def _truth(value: object) -> object:
    return value.strip().lower() == "true" if isinstance(value, str) else value


_Points = Annotated[float | None, BeforeValidator(_number)]
_Count = Annotated[int | None, BeforeValidator(_whole)]
_Truth = Annotated[bool, BeforeValidator(_truth)]


class ResultRow(Frozen):
    """One run. The order of the fields is the order of the columns."""

    run_id: str
    timestamp: str
    task: str
    agent: str
    driver_model: str = ""
    base_model: str
    baseline: _Points = None
    best_score: _Points = None
    improvement: _Points = None
    submissions: _Count = None
    duration_s: _Count = None
    success: _Truth = False
    workspace: str = ""
    status: str = ""
    protocol: str = ""
    split: str = ""
    n: _Count = None
    ci_low: _Points = None
    """Lower end of the improvement's 95 % interval."""
    ci_high: _Points = None
    test_score: _Points = None
    val_baseline: _Points = None
    val_best: _Points = None
    isolation: str = ""
    network: str = ""
    seed: _Count = None
    engine: str = ""
    gpus: str = ""
    version: str = ""
    ledger_head: str = ""


COLUMNS = tuple(ResultRow.model_fields)
_SCORES = frozenset(
    name for name, field in ResultRow.model_fields.items() if field.annotation == float | None
)
_NEEDED = tuple(name for name, field in ResultRow.model_fields.items() if field.is_required())
_ANCESTOR = COLUMNS[: COLUMNS.index("workspace") + 1]


class _Unreadable(NamedTuple):
    """A line that is no row; kept as it is when the file is rewritten."""

    number: int
    reason: str
    text: str
    """Without its line end."""


class Results(NamedTuple):
    """What a results file holds."""

    rows: tuple[ResultRow, ...]
    faults: tuple[str, ...]
    """Lines that are no row, each with its number."""


def driver_model(environment: Mapping[str, str]) -> str:
    """The large model behind an agent, as its own environment names it; `unknown` if it does not."""
    return next((environment[name] for name in DRIVER_VARIABLES if environment.get(name)), "unknown")


def result_row(
    plan: RunPlan, record: RunRecord, grades: Sequence[Grade], *, driver: str, workspace: Path
) -> ResultRow:
    """The row of a run. Cells of what was not graded stay empty."""
    result = record.result
    holdout = plan.request.protocol == "holdout"
    interval = result.improvement.ci95 if result else None
    baseline = result.baseline if result else record.test_baseline
    return ResultRow(
        run_id=plan.run_id,
        timestamp=datetime.fromisoformat(record.started).astimezone().strftime(TIME_FORMAT),
        task=plan.request.task,
        agent=plan.request.agent,
        driver_model=driver,
        base_model=plan.request.model,
        baseline=baseline.value if baseline else None,
        best_score=result.score.value if result else None,
        improvement=result.improvement.value if result else None,
        submissions=len(grades),
        duration_s=int(record.duration_s),
        success=_succeeded(record, grades),
        workspace=str(workspace),
        status=record.status.value,
        protocol=plan.request.protocol,
        split=result.split if result else "",
        n=result.score.n if result else None,
        ci_low=interval[0] if interval else None,
        ci_high=interval[1] if interval else None,
        test_score=result.score.value if result and holdout else None,
        val_baseline=record.val_baseline.value if record.val_baseline else None,
        val_best=_best_validation(grades),
        isolation=plan.isolation,
        network=plan.network,
        seed=plan.seed,
        engine=plan.numeric.engine,
        gpus=" ".join(plan.gpus),
        version=plan.version,
        ledger_head=record.ledger_head,
    )


def _succeeded(record: RunRecord, grades: Sequence[Grade]) -> bool:
    ended_well = record.agent_exit == 0 or record.stopped_at_deadline
    return ended_well and any(grade.score is not None for grade in grades)


def _best_validation(grades: Sequence[Grade]) -> float | None:
    """The best validation score of all submissions, which flatters; None under `open`."""
    scores = [grade.score for grade in grades if grade.split == "val" and grade.score is not None]
    if not scores:
        return None
    pick = max if scores[0].metric.direction == "maximize" else min
    return pick(score.value for score in scores)


def record_result(path: Path, row: ResultRow) -> None:
    """Put the row into the file, once: a row with the same run_id is replaced where it stands.

    Safe against other processes that do the same. A file that AutoRL-Bench wrote is brought to our columns;
    a line that is no row stays as it is.
    """
    with FileLock(path.with_name(f".{path.name}.lock"), timeout=_LOCK_TIMEOUT_S):
        lines = _read(path)
        known = [line.run_id if isinstance(line, ResultRow) else None for line in lines]
        if row.run_id not in known and _ends_as_ours(path):
            with path.open("a", encoding="utf-8", newline="") as file:
                file.write(_text([row]))
            return
        if row.run_id in known:
            lines[known.index(row.run_id)] = row
        else:
            lines.append(row)
        write_atomic(path, ",".join(COLUMNS) + "\n" + _text(lines))


def _ends_as_ours(path: Path) -> bool:
    """Whether a line can simply be added: our header, and a complete last line."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return False
    return content.startswith((",".join(COLUMNS) + "\n").encode()) and content.endswith(b"\n")


def _text(lines: Sequence[ResultRow | _Unreadable]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for line in lines:
        if isinstance(line, ResultRow):
            writer.writerow(_cell(name, value) for name, value in line)
        else:
            text.write(f"{line.text}\n")
    return text.getvalue()


def _cell(name: str, value: object) -> str:
    if value is None:
        return ""
    return f"{value:.2f}" if name in _SCORES else str(value)


def read_results(path: Path) -> Results:
    """All rows of a results file, of ours or of AutoRL-Bench, with and without its driver_model column.

    A missing file has no rows. A line that cannot be read is told in `faults` and hides no other.
    """
    lines = _read(path)
    return Results(
        rows=tuple(line for line in lines if isinstance(line, ResultRow)),
        faults=tuple(
            f"{path}, line {line.number}: {line.reason}" for line in lines if isinstance(line, _Unreadable)
        ),
    )


def _read(path: Path) -> list[ResultRow | _Unreadable]:
    if not path.exists():
        return []
    # utf-8-sig: spreadsheets put a mark before the first name
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        lines = file.readlines()
    records = _records(lines)
    first = next(records, None)
    if first is None:
        return []
    header = tuple(name.strip() for name in first.cells)
    missing = [name for name in _NEEDED if name not in header]
    if missing:
        reason = f"no header of a results file: there is no column {', '.join(missing)}"
        return [_Unreadable(1, reason, "".join(lines).rstrip("\r\n"))]
    return [_line(header, record) for record in records if record.cells or record.fault]


class _Record(NamedTuple):
    """Cells as they stand in the file."""

    number: int
    """Of the line in which they begin."""
    cells: Sequence[str]
    text: str
    fault: str = ""


def _records(lines: Sequence[str]) -> Iterator[_Record]:
    """The records of a file; a quotation that is never closed takes its own line and no other with it."""
    place = 0
    while place < len(lines):
        reader = csv.reader(islice(lines, place, place + _MOST_LINES), strict=True)
        try:
            cells, fault, taken = next(reader, []), "", reader.line_num
        except csv.Error as error:  # also a cell of more than 128 KiB
            cells, fault, taken = [], str(error), 1
        text = "".join(lines[place : place + taken]).rstrip("\r\n")
        yield _Record(place + 1, cells, text, fault)
        place += max(1, taken)


def _line(header: tuple[str, ...], record: _Record) -> ResultRow | _Unreadable:
    """AutoRL-Bench appended rows with driver_model below a header without it: the length tells."""
    number, cells, text, fault = record
    if fault:
        return _Unreadable(number, fault, text)
    if len(cells) == len(_ANCESTOR) and len(header) == len(_ANCESTOR) - 1:
        header = _ANCESTOR
    if len(cells) != len(header):
        return _Unreadable(number, f"{len(cells)} cells for {len(header)} columns", text)
    named = {name: cell for name, cell in zip(header, cells, strict=True) if name in COLUMNS}
    try:
        return ResultRow.model_validate(named)
    except ValidationError as error:
        first = error.errors()[0]
        return _Unreadable(number, f"{first['loc'][0]}: {first['msg']}", text)
