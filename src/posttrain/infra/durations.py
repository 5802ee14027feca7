"""Durations as people write them: `7200`, `90s`, `45m`, `12h`, `1h30m`."""

from __future__ import annotations

import re

from posttrain.core.errors import UsageError

_PATTERN = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?", re.ASCII)
_LONGEST_S = 366 * 24 * 3600


def parse_duration(text: str, *, field: str = "duration") -> float:
    """Seconds in `text`; UsageError naming `field` for anything but the forms above, 0, or over a year."""
    text = text.strip()
    seconds: int | None = None
    if re.fullmatch(r"\d{1,12}", text, re.ASCII):
        seconds = int(text)
    elif len(text) <= 40 and (match := _PATTERN.fullmatch(text)) and any(match.groups()):
        hours, minutes, rest = (int(part or 0) for part in match.groups())
        seconds = hours * 3600 + minutes * 60 + rest
    if seconds is None or not 0 < seconds <= _LONGEST_S:
        raise UsageError(f"{field}: {text!r} is not a duration; write 7200, 90s, 45m, 12h or 1h30m")
    return float(seconds)


def format_duration(seconds: float) -> str:
    """The shortest exact form of whole seconds: `1h30m`, `45m`, `90s` reads `1m30s`."""
    whole = max(0, round(seconds))
    hours, rest = divmod(whole, 3600)
    minutes, rest = divmod(rest, 60)
    parts = [f"{hours}h" if hours else "", f"{minutes}m" if minutes else "", f"{rest}s" if rest else ""]
    return "".join(parts) or "0s"
