"""Rule 4: whether a failure type is one that the told cause, the exit code and the clock allow."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from posttrain.reports.summaries.facts import MINUTE, Facts
from posttrain.reports.summaries.timing import Window
from posttrain.reports.summaries.words import FailureType

_ERROR = re.compile(r"\b[A-Z]\w*(?:Error|Exception)\b")
_SPEAKS_OF = {
    FailureType.TRAINING_DIVERGED: re.compile(
        r"\bnan\b|\binf\b|diverg|explo[ds]|collaps|loss|grad|发散|爆炸|崩|reward|奖励|\bkl\b|异常值|overflow",
        re.IGNORECASE,
    ),
    FailureType.ROLLOUT_LOGIC_WRONG: re.compile(
        r"roll-?out|reward|sampl|generat|completion|advantage|采样|奖励|生成|回合|答案|parse|extract|抽取|解析",
        re.IGNORECASE,
    ),
}
"""Words without which a cause that is an exception is another failure."""
_STOPPED = frozenset({124, 130, 137, 143, 15, 9, -2, -9, -15})
"""Exit codes of what ran out of time or was ended from outside."""
_REST = 0.05
"""Share of the budget that may be left where it is told as used up."""


def misfits(
    kinds: Sequence[str], text: str, *, exit_code: int | None, window: Window | None, facts: Facts
) -> Iterator[str]:
    """What speaks against the failure types of a failed round; `text` tells its cause."""
    error = _ERROR.search(text)
    named = set(kinds)
    for kind, words in _SPEAKS_OF.items():
        if named == {kind.value} and error is not None and not words.search(_without_types(text)):
            yield f"{kind.value}: the cause that is told is {error[0]}"
    if named == {FailureType.UNKNOWN.value} and error is not None and exit_code not in (None, 0):
        yield f"unknown: {error[0]} is a code_error_runtime"
    timeout = FailureType.TIMEOUT_NO_SUBMISSION.value
    if named == {timeout} and exit_code not in (None, 0) and exit_code not in _STOPPED:
        left = _left(window, facts)
        if left is not None and left > _REST:
            yield f"{timeout}: {left:.0%} of the budget was left, and the process ended with {exit_code}"


def _left(window: Window | None, facts: Facts) -> float | None:
    """The share of the budget that was left at the end of a round, at least."""
    if window is None or window.outside or facts.start is None or not facts.timeout_s:
        return None
    return 1.0 - (window.end + MINUTE - facts.start) / facts.timeout_s


def _without_types(text: str) -> str:
    for kind in FailureType:
        text = text.replace(kind.value, " ")
    return text
