"""trial_and_error.md: every attempt, what went wrong, what was changed for the next one."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from posttrain.blueprints.state import Attempt
from posttrain.infra.durations import format_duration


def trial_md(name: str, attempts: Sequence[Attempt]) -> str:
    """One section an attempt."""
    lines = [f"# {name}: attempts", ""]
    if not attempts:
        lines += ["Nothing was run.", ""]
    for attempt in attempts:
        lines += [*_attempt(attempt), ""]
    return "\n".join(lines)


def _attempt(attempt: Attempt) -> Iterator[str]:
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(attempt.planned_at))
    yield f"## Attempt {attempt.number} ({at})"
    yield from ("", "```bash", *attempt.variation.prefix, attempt.variation.command, "```", "")
    yield f"- configuration: `{attempt.variation.yaml}`"
    for name, value in attempt.variation.env.items():
        yield f"- environment: `{name}={value}`"
    if attempt.ending is None:
        yield "- did not end"
        return
    ending = attempt.ending
    reason = f" ({ending.stop_reason})" if ending.stop_reason else ""
    duration = format_duration(ending.duration_s)
    yield f"- ended by {ending.cause}{reason}, exit code {ending.exit_code}, after {duration}"
    for leftover in ending.leftovers:
        yield f"- left running and ended: `{leftover}`"
    if attempt.finding is not None:
        yield f"- fault: **{attempt.finding.fault.value}**"
        yield from (
            "",
            "```text",
            *(f"{line.line}: {line.text}" for line in attempt.finding.evidence),
            "```",
            "",
        )
    yield from (f"- proposal refused: {refused}" for refused in attempt.refused)
    if attempt.repair is not None:
        yield f"- repair by `{attempt.repair.by}`: {attempt.repair.why}"
        yield from (f"  - {change}" for change in attempt.repair.changes)
        for action in attempt.repair.actions:
            yield f"  - {action.kind}: `{action.path}`"
    elif attempt.finding is not None:
        yield "- no repair was made"
