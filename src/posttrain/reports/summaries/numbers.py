"""Every number of a section against scores.json, the ledger and the clock."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from posttrain.reports.summaries import told
from posttrain.reports.summaries.differences import wrong_differences
from posttrain.reports.summaries.facts import MINUTE, Facts, Handed, best_of, process_metrics
from posttrain.reports.summaries.findings import FACTS
from posttrain.reports.summaries.text import Bullet, Document, Section
from posttrain.reports.summaries.timing import Timeline, Window, neighbours
from posttrain.reports.summaries.told import Number
from posttrain.reports.summaries.words import Field

_VALUE = (
    r"\s*(?:=|:|≈|~|is|was|为|是)\s*`?([-+]?\d[\d.]*(?:[eE][-+]?\d+)?%?)"
    r"\s*(?:\(\s*(\d{1,6})\s*/\s*(\d{1,6})\s*\))?"
)
_NOTHING = r"\s*(?:=|:|is|was|为|是)\s*`?(null|none|n/a)\b"
METRICS = (
    *("valid_submission_rate", "first_valid_idx", "first_valid_delay", "time_to_first_improvement"),
    *("time_to_best", "time_used_ratio", "monotonic_ratio", "copy_model_count", "last_submit_gap"),
)
_SECONDS = {"first_valid_delay", "time_to_first_improvement", "time_to_best"}
_LATE_S = 2.0

Say = Callable[[int, str, str, str], None]
"""line, rule, message, remedy"""


def metric_claims(text: str) -> Iterator[tuple[str, re.Match[str]]]:
    """Process metrics that a text gives a value to."""
    for name in METRICS:
        for match in re.finditer(rf"\b{name}\b`?{_VALUE}", text):
            yield name, match


def names_a_metric(text: str) -> bool:
    """Whether a text has a process metric with its value, or says that it has none yet."""
    nothing = any(re.search(rf"\b{name}\b`?{_NOTHING}", text, re.IGNORECASE) for name in METRICS)
    return nothing or next(metric_claims(text), None) is not None


def check_times(document: Document, facts: Facts, line: Timeline) -> None:
    """Headings follow each other, within the agent's time."""
    for section in document.sections:
        window = line.of(section)
        if window is None:
            continue
        begin, end = (
            (window.told, window.told + (section.duration_s or 0.0))
            if line.at_begin
            else (window.told - (section.duration_s or 0.0), window.told)
        )
        if facts.now is not None and end > facts.now + _LATE_S:
            document.add(
                section.line, FACTS, "the iteration lies in the future", "write when it ended", section.number
            )
        elif facts.start is not None and end + MINUTE < facts.start:
            document.add(
                section.line,
                FACTS,
                "the iteration lies before the run",
                "write when it ended",
                section.number,
            )
        elif facts.start is not None and begin + MINUTE + _LATE_S < facts.start:
            since = max(0.0, end + MINUTE - facts.start)
            document.add(
                section.line,
                FACTS,
                f"{section.duration_s:.0f} s are more than the {since:.0f} s that the run had lasted",
                "the duration is that of this round alone",
                section.number,
            )
    for before, after in neighbours(document, line):
        if after.told < before.told:
            document.add(
                after.section.line,
                "2",
                f"it lies before Iteration {before.section.number}",
                "append iterations in the order in which they happened",
                after.section.number,
            )
            continue
        duration = (before if line.at_begin else after).section.duration_s or 0.0
        if after.told - before.told + MINUTE + _LATE_S < duration:
            document.add(
                after.section.line,
                FACTS,
                f"it overlaps Iteration {before.section.number}: {after.told - before.told:.0f} s "
                f"after it, but {duration:.0f} s long",
                "the duration is that of this round alone",
                after.section.number,
            )


class Numbers:
    """Checks the scores of one section."""

    def __init__(self, document: Document, facts: Facts, line: Timeline) -> None:
        self._document = document
        self._facts = facts
        self._line = line

    def check(self, section: Section) -> None:
        bullet = section.bullet(Field.SCORE)
        claimed = told.scores(section)
        if bullet is not None and not bullet.empty:
            self._check_form(section, bullet, claimed)
            window = self._line.of(section)
            if window is not None and self._facts.handed_known:
                self._check_score(section, bullet, claimed, window)
                if not window.outside:
                    self._check_best(section, bullet, claimed, window)
        self._check_words(section)

    def _say(self, section: Section, line: int, message: str, remedy: str, rule: str = FACTS) -> None:
        self._document.add(line, rule, message, remedy, section.number)

    def _check_form(self, section: Section, bullet: Bullet, claimed: told.Scores) -> None:
        if claimed.missing:
            self._say(
                section,
                bullet.line,
                f"not told as a number or N/A: {', '.join(claimed.missing)}",
                "write `X | Improvement: X | Best: X (iter N)`",
                "10",
            )
        known = {other.number for other in self._document.sections if other.line <= section.line}
        if claimed.best_iteration is not None and claimed.best_iteration not in known:
            self._say(
                section,
                bullet.line,
                f"best in iteration {claimed.best_iteration}, which has not happened yet",
                "name the iteration of the best score so far",
            )

    def _check_score(self, section: Section, bullet: Bullet, claimed: told.Scores, window: Window) -> None:
        graded = [entry for entry in window.candidates if entry.score is not None]
        remedy = "take it from scores.json"
        if claimed.score is None:
            sure = [entry for entry in window.certain if entry.score is not None]
            if sure and "score" not in claimed.missing:
                self._say(
                    section,
                    bullet.line,
                    f"no score is told, but submission {sure[-1].number} scored {sure[-1].score:g}",
                    remedy,
                )
            return
        fitting = [entry for entry in graded if claimed.score.matches(entry.score or 0.0)]
        if not fitting:
            there = ", ".join(f"{entry.number}: {entry.score:g}" for entry in graded)
            found = f"graded then: {there}" if there else "nothing was graded in this iteration"
            if not there:
                remedy = "write N/A where nothing was graded"
            self._say(section, bullet.line, f"no submission scored {claimed.score.value:g}; {found}", remedy)
        gain = claimed.improvement
        if gain is None:
            if "improvement" not in claimed.missing and fitting:
                self._say(section, bullet.line, "a score without its improvement", remedy)
        elif not any(gain.matches(entry.improvement or 0.0) for entry in fitting or graded):
            there = ", ".join(f"{entry.improvement:g}" for entry in fitting or graded) or "nothing"
            self._say(
                section, bullet.line, f"improvement {gain.value:g}: scores.json has {there} then", remedy
            )

    def _check_best(self, section: Section, bullet: Bullet, claimed: told.Scores, window: Window) -> None:
        bests = self._bests(window)
        remedy = "the best score of all graded so far, and the iteration it came in"
        if claimed.best is None:
            if "best" not in claimed.missing and None not in bests:
                best = bests[0]
                assert best is not None
                self._say(section, bullet.line, f"no best is told; it is {best.score:g}", remedy)
            return
        fitting = [entry for entry in bests if entry is not None and claimed.best.matches(entry.score or 0.0)]
        if not fitting:
            there = " or ".join(
                dict.fromkeys("none yet" if entry is None else f"{entry.score:g}" for entry in bests)
            )
            self._say(section, bullet.line, f"best {claimed.best.value:g}: it is {there}", remedy)
            return
        named = claimed.best_iteration
        reached = self._reached(fitting, window)
        if named in {other.number for other in self._document.sections} and reached and named not in reached:
            self._say(
                section,
                bullet.line,
                f"best in iteration {named}: it was reached in {_either(reached)}",
                remedy,
            )

    def _bests(self, window: Window) -> list[Handed | None]:
        """The best so far, at each second that the heading may mean; grades may have come in meanwhile."""
        earliest = min(window.told, window.end)
        moments = [earliest, window.end]
        moments += [e.at + e.waited for e in self._facts.handed if earliest <= e.at + e.waited <= window.end]
        found: list[Handed | None] = []
        for moment in sorted(moments):
            best = best_of([e for e in self._facts.handed if e.at + e.waited <= moment])
            if best not in found:
                found.append(best)
        own = best_of([e for e in self._facts.handed if e.at <= window.end])  # told of what is still graded
        return found if own in found else [*found, own]

    def _reached(self, bests: Sequence[Handed], window: Window) -> list[int]:
        """Iterations up to this one in which a submission with the best score may have been made."""
        scores = {entry.score for entry in bests}
        found: list[int] = []
        for section in self._document.sections:
            other = self._line.of(section)
            if other is None or section.number is None or section.line > window.section.line:
                continue
            if any(entry.score in scores for entry in other.candidates):
                found.append(section.number)
        return found

    # --- numbers in words

    def _check_words(self, section: Section) -> None:
        for bullet in section.bullets:
            if bullet.name in (Field.PROGRESS, Field.WHY):
                self._check_metrics(section, bullet)
                self._check_mentions(section, bullet)
                self._check_differences(section, bullet)

    def _check_metrics(self, section: Section, bullet: Bullet) -> None:
        window = self._line.of(section)
        if window is None or window.outside or bullet.name is not Field.PROGRESS:
            return
        for name, match in metric_claims(bullet.text):
            value = told.number(match[1].rstrip("."))
            if value is None or not self._known(name):
                continue
            shares = None if match[2] is None else (int(match[2]), int(match[3]))
            if not self._metric_holds(name, value, shares, window):
                self._say(
                    section,
                    bullet.line,
                    f"{name}={match[1].rstrip('.')}{_share_text(shares)}: "
                    f"scores.json and run_meta.json come to {self._metric_text(name, window)}",
                    "take it from `posttrain report metrics`",
                    "6",
                )

    def _known(self, name: str) -> bool:
        if name == "time_used_ratio":
            return self._facts.start is not None and self._facts.timeout_s is not None
        if name == "last_submit_gap":
            return False
        return self._facts.handed_known and (name not in _SECONDS or self._facts.start is not None)

    def _metric_holds(self, name: str, value: Number, shares: tuple[int, int] | None, window: Window) -> bool:
        if name == "time_used_ratio":
            return self._ratio_holds(value, window)
        for handed in self._states(window):
            made = process_metrics(
                handed, start=self._facts.start, end=window.end, timeout_s=self._facts.timeout_s
            )
            found = made[name]
            if not isinstance(found, int | float):
                continue
            waited = max((entry.waited for entry in handed), default=0.0) if name in _SECONDS else 0.0
            low, high = (found - _LATE_S, found + waited + _LATE_S) if name in _SECONDS else (found, found)
            fits = low - value.slack - 1e-9 <= value.value <= high + value.slack + 1e-9
            if fits and (shares is None or _shares_hold(shares, handed, name)):
                return True
        return False

    def _ratio_holds(self, value: Number, window: Window) -> bool:
        start, timeout = self._facts.start or 0.0, self._facts.timeout_s or 1.0
        low, high = (window.told - MINUTE - start) / timeout, (window.end - start) / timeout
        return low - value.slack - 0.005 <= value.value <= high + value.slack + 0.005

    def _states(self, window: Window) -> list[list[Handed]]:
        """What may have been handed in and graded when the section was written; also this round alone."""
        handed = self._facts.handed
        first = sum(entry.at + entry.waited <= window.told for entry in handed)
        last = sum(entry.at <= window.end for entry in handed)
        states = [list(handed[:count]) for count in range(min(first, last), last + 1)]
        return [*states, list(window.candidates)]

    def _metric_text(self, name: str, window: Window) -> str:
        handed = self._facts.handed_by(window.end)
        made = process_metrics(
            handed, start=self._facts.start, end=window.told, timeout_s=self._facts.timeout_s
        )[name]
        return "null" if made is None else f"{made:.4g}" if isinstance(made, float) else str(made)

    def _check_differences(self, section: Section, bullet: Bullet) -> None:
        window = self._line.of(section)
        if window is None or window.outside or not self._facts.handed_known:
            return
        for said in wrong_differences(bullet.text, self._facts.handed_by(window.end)):
            self._say(
                section,
                bullet.line,
                f"`{said}`: no two scores of scores.json are that far apart",
                "quote scores.json as it is",
            )

    def _check_mentions(self, section: Section, bullet: Bullet) -> None:
        """`baseline=45.0`, `score=65.0`, `improvement=20.0` in running text."""
        if not self._facts.handed_known or not self._facts.handed:
            return
        window = self._line.of(section)
        handed = self._facts.handed if window is None or window.outside else self._facts.handed_by(window.end)
        pools = {
            "baseline": [e.baseline for e in self._facts.handed],
            "baseline_score": [e.baseline for e in self._facts.handed],
            "improvement": [e.improvement for e in handed],
            "score": [e.score for e in handed] + [e.baseline for e in handed],
        }
        if "scores.json" not in bullet.text:
            del pools["score"]  # a score of something else
        for name, pool in pools.items():
            known = [value for value in pool if value is not None]
            for match in re.finditer(rf"(?<![\w_]){name}\b`?{_VALUE}", bullet.text, re.IGNORECASE):
                value = told.number(match[1].rstrip("."))
                if value is None or match[1].endswith("%") or any(value.matches(k) for k in known):
                    continue
                there = ", ".join(f"{k:g}" for k in dict.fromkeys(known)) or "none"
                self._say(
                    section,
                    bullet.line,
                    f"{name}={match[1].rstrip('.')}: scores.json has {there[:80]}",
                    "quote scores.json as it is",
                )


def _shares_hold(shares: tuple[int, int], handed: Sequence[Handed], name: str) -> bool:
    if name != "valid_submission_rate":
        return True
    counted = [entry for entry in handed if entry.status.value != "error"]
    return shares == (sum((entry.score or 0.0) > 0.0 for entry in counted), len(counted))


def _share_text(shares: tuple[int, int] | None) -> str:
    return "" if shares is None else f" ({shares[0]}/{shares[1]})"


def _either(numbers: Sequence[int]) -> str:
    return " or ".join(str(number) for number in numbers)
