"""The table over runs for programs: JSON data and CSV text."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence

from posttrain.cli.output import one_line
from posttrain.reports.comparison import Control, Entry, Group, lift
from posttrain.reports.results import ResultRow

_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""A spreadsheet takes a text that begins so for a formula."""
_GROUP_CSV = (
    "task", "base_model", "timeout_s", "protocol", "split", "n", "engine", "agent", "driver_model",
    "is_control", "runs", "not_scored", "rejected", "baseline", "score", "improvement", "ci_low", "ci_high",
    "ci_over", "control", "control_improvement", "control_runs", "lift", "lift_low", "lift_high",
    "format_control", "overfit", "overfit_low", "overfit_high", "verdicts", "statuses", "marks", "seeds",
    "run_ids",
)  # fmt: skip
_RUN_CSV = (
    *ResultRow.model_fields, "timeout_s", "control", "lift", "verdicts", "format_control", "overfit",
    "verdict", "why", "marks",
)  # fmt: skip


def run_as_data(entry: Entry, control: Control | None) -> dict[str, object]:
    """A run as JSON: its row, and what is compared. A rejected run has no score here either."""
    row, facts = entry.row, entry.facts
    nothing = ("best_score", "improvement", "ci_low", "ci_high", "test_score")
    taken = dict.fromkeys(nothing) | {"success": False} if facts.accepted is False else {}
    word = None if facts.accepted is None else {"accepted": facts.accepted, "why": facts.why}
    return {
        **row.model_dump(),
        **taken,
        "timeout_s": facts.timeout_s,
        "control": control,
        "lift": lift(entry, control),
        "verdict": word,
        "verdicts": facts.verdicts,
        "overfit": facts.overfit,
        "format_control": facts.format_control,
        "marks": entry.marks,
    }


def groups_as_csv(groups: Sequence[Group]) -> str:
    """One line a group."""
    return _as_csv(map(_flat, groups), _GROUP_CSV)


def runs_as_csv(lines: Iterable[tuple[Entry, Control | None]]) -> str:
    """One line a run, with the control that it is compared with."""
    return _as_csv((_flat_run(entry, control) for entry, control in lines), _RUN_CSV)


def _flat(group: Group) -> dict[str, object]:
    data = group.model_dump()
    over = "runs" if group.interval else "items" if group.item_interval else ""
    low, high = group.interval or group.item_interval or (None, None)
    control, overfit = group.control, group.overfit
    return data | {
        "ci_low": low,
        "ci_high": high,
        "ci_over": over,
        "control": control.agent if control else None,
        "control_improvement": control.improvement if control else None,
        "control_runs": control.runs if control else None,
        **_ends("lift", group.lift_interval),
        "format_control": group.format_control.mean if group.format_control else None,
        "overfit": overfit.mean if overfit else None,
        **_ends("overfit", overfit.interval if overfit else None),
        "verdicts": _counts(group.verdicts),
        "statuses": _counts(group.statuses),
        "marks": _counts(group.marks),
        "seeds": " ".join(map(str, group.seeds)),
        "run_ids": " ".join(group.run_ids),
    }


def _flat_run(entry: Entry, control: Control | None) -> dict[str, object]:
    data, facts = run_as_data(entry, control), entry.facts
    return data | {
        "control": control.agent if control else None,
        "verdicts": _counts(facts.verdicts),
        "format_control": facts.format_control.improvement.value if facts.format_control else None,
        "overfit": facts.overfit.value if facts.overfit else None,
        "verdict": None if facts.accepted is None else "accepted" if facts.accepted else "rejected",
        "why": facts.why,
        "marks": "; ".join(entry.marks),
    }


def _ends(name: str, interval: tuple[float, float] | None) -> dict[str, object]:
    low, high = interval or (None, None)
    return {f"{name}_low": low, f"{name}_high": high}


def _counts(counts: Mapping[str, int]) -> str:
    return "; ".join(f"{name} {count}" for name, count in counts.items())


def _as_csv(lines: Iterable[Mapping[str, object]], columns: Sequence[str]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for line in lines:
        writer.writerow(_cell(line[column]) for column in columns)
    return text.getvalue()


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.2f}"
    if isinstance(value, str):
        text = one_line(value)
        return f"'{text}" if text.startswith(_FORMULA) else text
    return str(value)
