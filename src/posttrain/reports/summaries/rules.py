"""Rules 2, 4, 5, 6, 8: order, causes, evidence, metrics, and what is new."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cached_property

from posttrain.core.grading import Verdict
from posttrain.reports.summaries import told
from posttrain.reports.summaries.facts import Facts, Handed
from posttrain.reports.summaries.findings import FACTS, Note
from posttrain.reports.summaries.kinds import misfits
from posttrain.reports.summaries.numbers import names_a_metric
from posttrain.reports.summaries.text import NAME, Bullet, Document, Section
from posttrain.reports.summaries.timing import Timeline
from posttrain.reports.summaries.words import FailureType, Field

_ERROR = re.compile(r"\b[A-Z]\w*(?:Error|Exception|Interrupt|Exit)\b")
_SIGN = re.compile(r"\bOOM\b|out of memory|\bnan\b|\binf\b|\bSIG[A-Z]+\b|\bkilled\b|Traceback", re.IGNORECASE)
_QUOTED = re.compile(r"`([^`\n]{4,300})`|“([^”\n]{4,300})”|\"([^\"\n]{4,300})\"")
_LEFT_OUT = re.compile(r"\.{3,}|…|\[\.\.\.\]")
_LOG_PLACE = re.compile(r"([\w./-]+\.(?:log|txt|out|err))\s*(?::|L|line|第)\s*L?\s*(\d{1,9})", re.IGNORECASE)
_EVIDENCE = re.compile(
    r"\b(?:scores\.json|run\.log|agent\.log|run_meta\.json|metrics\.json)\b", re.IGNORECASE
)
_LEDGER_CAUSES = (FailureType.TIMEOUT_NO_SUBMISSION, FailureType.COPY_MODEL_FALLBACK)
_NOTHING_NEW = re.compile(r"无新增|nothing new|no new", re.IGNORECASE)
_NEWS = re.compile(r"新增证据|新增尝试|无新增|new evidence|new attempt|nothing new|no new", re.IGNORECASE)
_OF_A_SUCCESS = {FailureType.UNKNOWN.value, FailureType.COPY_MODEL_FALLBACK.value}
"""A process that copies the base ends well."""
_WITHOUT_A_CRASH = (
    FailureType.COPY_MODEL_FALLBACK,
    FailureType.TIMEOUT_NO_SUBMISSION,
    FailureType.TRAINING_DIVERGED,
    FailureType.ROLLOUT_LOGIC_WRONG,
)


def check_order(document: Document) -> None:
    """Rule 2: 1, 2, 3, … without holes and repetitions."""
    last = 0
    first_at: dict[int, int] = {}
    for section in document.sections:
        number = section.number
        if number is None:
            continue
        if number in first_at:
            message = f"Iteration {number} stands in line {first_at[number]} already"
        elif number != last + 1:
            message = (
                f"Iteration {number} follows Iteration {last}"
                if last
                else f"it begins with Iteration {number}"
            )
        else:
            message = ""
        if message:
            document.add(section.line, "2", message, f"the next one is {last + 1}", number)
        first_at.setdefault(number, section.line)
        last = max(last, number)


class Stories:
    """Checks the words of a section: status, cause, reasons, progress."""

    def __init__(self, document: Document, facts: Facts, line: Timeline, notes: list[Note]) -> None:
        self._document = document
        self._facts = facts
        self._line = line
        self._notes = notes
        self._places = {section.line: place for place, section in enumerate(document.sections)}

    def check(self, section: Section) -> None:
        self._check_status(section)
        self._check_failure(section)
        self._check_reasons(section)
        self._check_progress(section)
        self._check_repetition(section)

    def _add(self, section: Section, line: int, rule: str, message: str, remedy: str) -> None:
        self._document.add(line, rule, message, remedy, section.number)

    def _failures(self, section: Section) -> list[str]:
        kinds = told.failure_types(section.text(Field.STATUS, Field.PROGRESS, Field.WHAT))
        good, _ = told.status(section)
        return told.own_failures(section) if good else kinds

    def _check_status(self, section: Section) -> None:
        bullet = section.bullet(Field.STATUS)
        if bullet is None or bullet.empty:
            return
        good, code = told.status(section)
        if good is None or code is None:
            remedy = "write `✅ 成功 (exit_code=0)` or `❌ 失败 (exit_code=X)`"
            self._add(section, bullet.line, "10", "no clear status with an exit code", remedy)
            return
        if good and code != 0:
            self._add(
                section, bullet.line, FACTS, f"a success with exit code {code}", "a success has exit code 0"
            )
        if not good and code == 0:
            kinds = self._failures(section)
            if not any(kind.value in kinds for kind in _WITHOUT_A_CRASH) and not self._refused(section):
                self._add(
                    section,
                    bullet.line,
                    FACTS,
                    "a failure with exit code 0",
                    "tell the exit code of the training process, or the failure_type without a crash",
                )

    def _refused(self, section: Section) -> bool:
        """Whether it is told of something that was handed in and could not be graded: no process crashed."""
        ungraded = not self._facts.handed_known or any(entry.score is None for entry in self._facts.handed)
        return ungraded and FailureType.CODE_ERROR_RUNTIME.value in self._failures(section)

    # --- rule 4

    def _check_failure(self, section: Section) -> None:
        good, _ = told.status(section)
        kinds = self._failures(section)
        bullet = section.bullet(Field.PROGRESS) or section.bullet(Field.STATUS)
        if bullet is None:
            return
        known = {kind.value for kind in FailureType}
        for kind in kinds:
            if kind not in known:
                self._add(
                    section,
                    bullet.line,
                    "4",
                    f"{kind!r} is no failure_type",
                    f"one of {', '.join(sorted(known))}",
                )
        if good is False:
            if not kinds:
                self._add(
                    section,
                    bullet.line,
                    "4",
                    "a failure without failure_type",
                    f"one of {', '.join(sorted(known))}",
                )
            self._check_cause(section, bullet, kinds)
            self._check_fit(section, bullet, kinds)
        if good:
            wrong = [kind for kind in told.own_failures(section) if kind in known - _OF_A_SUCCESS]
            if wrong:
                message = f"a success with failure_type {wrong[0]}"
                self._add(section, bullet.line, "4", message, "a success has `unknown`")
        self._check_kind(section, bullet)

    def _check_fit(self, section: Section, bullet: Bullet, kinds: Sequence[str]) -> None:
        _, code = told.status(section)
        text, window = f"{section.text(Field.PROGRESS)}\n{_code_text(bullet)}", self._line.of(section)
        for message in misfits(kinds, text, exit_code=code, window=window, facts=self._facts):
            self._add(section, bullet.line, "4", message, "name the failure that happened")

    def _check_kind(self, section: Section, bullet: Bullet) -> None:
        """The failure type against what came of the submissions of this iteration."""
        window = self._line.of(section)
        if window is None or not self._facts.handed_known:
            return
        own = window.candidates
        copy, timeout = FailureType.COPY_MODEL_FALLBACK.value, FailureType.TIMEOUT_NO_SUBMISSION.value
        named = set(told.own_failures(section))
        copies = [entry for entry in own if is_copy(entry)]
        if copy in named and not copies:
            what = "no submission of this iteration is a copy of the base" if own else "nothing was handed in"
            self._add(section, bullet.line, "4", f"{copy}: {what}", "name the failure that happened")
        if timeout in named and any(entry.score is not None for entry in window.certain):
            number = next(entry.number for entry in window.certain if entry.score is not None)
            self._add(
                section,
                bullet.line,
                "4",
                f"{timeout}: submission {number} was graded",
                "name the failure that happened",
            )
        certain = [entry for entry in window.certain if entry.status is Verdict.GRADED]
        all_copies = all(entry.copy_of_base for entry in own if entry.status is Verdict.GRADED)
        if certain and all_copies and copy not in named:
            self._add(
                section,
                bullet.line,
                "4",
                f"submission {certain[-1].number} is a copy of the base",
                f"write failure_type={copy}",
            )

    def _check_cause(self, section: Section, bullet: Bullet, kinds: Sequence[str]) -> None:
        text = section.text(Field.STATUS, Field.WHAT, Field.PROGRESS) + "\n" + _code_text(bullet)
        self._check_places(section, bullet, text)
        signs = list(_signs(text))
        if any(kind.value in kinds for kind in _LEDGER_CAUSES) and (_EVIDENCE.search(text) or signs):
            return
        if not signs and not _LOG_PLACE.search(text):
            self._add(
                section,
                bullet.line,
                "4",
                "no cause that can be found",
                "quote the error or a line of agent.log, with its type",
            )
            return
        if not self._facts.logs_known or not signs:
            return
        invented = [quote for quote in _messages(text) if not self._stands(quote)]
        if not invented and any(map(self._stands, signs)):
            return
        signs = invented or signs
        if not all(log.whole for log in self._facts.logs):
            self._note(
                section, bullet.line, f"cause {signs[0][:40]!r}: the logs are too long to be read whole"
            )
            return
        self._add(
            section,
            bullet.line,
            "4",
            f"{signs[0][:60]!r} stands in no log",
            "quote what agent.log or run.log has, or keep the training's own log below the workspace",
        )

    def _stands(self, quote: str) -> bool:
        """Whether all parts of a quotation stand in one log; what was left out of it may be anything."""
        parts = ["".join(part.split()).lower() for part in _LEFT_OUT.split(quote)]
        return any(all(part in log for part in parts) for log in self._packed_logs)

    @cached_property
    def _packed_logs(self) -> list[str]:
        """What can be quoted as a cause, without spaces and capitals."""
        texts = [log.text for log in self._facts.logs] + [entry.error or "" for entry in self._facts.handed]
        return ["".join(text.split()).lower() for text in texts]

    def _check_places(self, section: Section, bullet: Bullet, text: str) -> None:
        """`agent.log:123` must exist."""
        for match in _LOG_PLACE.finditer(text):
            name = match[1].rsplit("/", 1)[-1]
            for log in self._facts.logs:
                lines = log.text.count("\n") + 1
                if log.name.rsplit("/", 1)[-1] == name and log.whole and int(match[2]) > lines:
                    self._add(
                        section,
                        bullet.line,
                        "4",
                        f"{name} has {lines} lines, not {match[2]}",
                        "name the line of the error",
                    )

    def _note(self, section: Section, line: int, message: str) -> None:
        self._notes.append(Note(file=NAME, line=line, iteration=section.number, message=message))

    # --- rules 5, 6, 8

    def _check_reasons(self, section: Section) -> None:
        bullet = section.bullet(Field.WHY)
        if bullet is None or bullet.empty or section is self._document.sections[0]:
            return
        if not _EVIDENCE.search(bullet.text):
            self._add(
                section,
                bullet.line,
                "5",
                "no evidence of the last round",
                "cite scores.json, run.log or agent.log with what they say",
            )

    def _check_progress(self, section: Section) -> None:
        bullet = section.bullet(Field.PROGRESS)
        if bullet is None or bullet.empty:
            return
        if not names_a_metric(bullet.text) and not told.failure_types(bullet.text):
            self._add(
                section,
                bullet.line,
                "6",
                "neither a process metric nor a failure type",
                "give a number, as valid_submission_rate=… or time_to_first_improvement=…",
            )

    def _check_repetition(self, section: Section) -> None:
        place = self._places[section.line]
        bullet = section.bullet(Field.PROGRESS)
        if place == 0 or bullet is None:
            return
        before = self._document.sections[place - 1]
        shared = set(self._cause(section)) & set(self._cause(before))
        if shared and not _NEWS.search(bullet.text):
            self._add(
                section,
                bullet.line,
                "8",
                f"{min(shared)} again, without what is new",
                "write 新增证据 / 新增尝试 / 无新增 (new evidence / new attempt / nothing new)",
            )
        told_new = _NEWS.search(bullet.text) and not _NOTHING_NEW.search(bullet.text)
        if shared and told_new and bullet.text == before.text(Field.PROGRESS):
            self._add(
                section,
                bullet.line,
                "8",
                f"the paragraph of Iteration {before.number} word for word",
                "say what is new",
            )

    def _cause(self, section: Section) -> list[str]:
        good, _ = told.status(section)
        kinds = told.failure_types(section.text(Field.STATUS, Field.PROGRESS))
        return [kind for kind in kinds if kind != "unknown"] if good is False else []


def is_copy(entry: Handed) -> bool:
    """Whether a submission is the base, as far as is known: its improvement is exactly 0 at least."""
    return entry.copy_of_base or entry.improvement == 0.0


def _signs(text: str) -> Iterator[str]:
    """What in a text can be looked for in a log."""
    for match in _ERROR.finditer(text):
        yield match[0]
    for match in _SIGN.finditer(text):
        yield match[0]
    for match in _QUOTED.finditer(text):
        quoted = next(group for group in match.groups() if group)
        if quoted.strip() not in {kind.value for kind in FailureType}:
            yield quoted.strip()


def _messages(text: str) -> Iterator[str]:
    """Quotations of an error with what it said: these are no words of the writer's own."""
    for match in _QUOTED.finditer(text):
        quoted = next(group for group in match.groups() if group)
        if re.search(rf"{_ERROR.pattern}\s*:\s*\S", quoted):
            yield quoted.strip()


def _code_text(bullet: Bullet) -> str:
    return "\n".join(line for block in bullet.blocks for line in block.lines)
