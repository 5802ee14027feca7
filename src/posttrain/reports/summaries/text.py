"""Reading summary.md: sections, bullets and code blocks with their lines, whatever the bytes are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime

from posttrain.reports.summaries.findings import Finding
from posttrain.reports.summaries.words import FIELDS, LABELS, Field

NAME = "summary.md"
LARGEST = 16 << 20
LONGEST_LINE = 100_000
LONGEST_TEXT = 20_000
MOST_SECTIONS = 1000
_HEADING = re.compile(r"^\s{0,3}(#{1,6})\s*Iteration\b(.*)$", re.IGNORECASE)
_PARTS = re.compile(r"^\s*([^\s(]+)\s*\((.*)\)\s*$")
_TIME = re.compile(r"\d{4}-\d{1,2}-\d{1,2} \d{1,2}:\d{2}")
_DURATION = re.compile(
    r"(?:耗时|duration|elapsed|took)\s*:?\s*(\d{1,12}(?:\.\d{1,6})?)\s*(?:s(?:ec(?:ond)?s?)?\b|秒)",
    re.IGNORECASE,
)
_FENCE = re.compile(r"^\s*(`{3,}|~{3,})(.*)$")
_BULLET = re.compile(r"^(?:[-*+•]\s+)(.*)$")
_BOLD = re.compile(r"^\*\*([^*]{1,40})\*\*")
_EMPTY = frozenset({"", "x", "todo", "tbd", "...", "…", "待补充", "待填写", "具体策略", "略", "-", "—"})
_FULL_WIDTH = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)} | {0x3000: 0x20, 0xA0: 0x20}
_OTHER_LABELS = {
    "score": Field.SCORE,
    "trainingtype": Field.TRAIN_TYPE,
    "keyconfiguration": Field.CONFIG,
    "what": Field.WHAT,
    "whatwedid": Field.WHAT,
    "whatidid": Field.WHAT,
    "problems/progress": Field.PROGRESS,
    "codesnippet": Field.CONTEXT,
    "codesnippetcontext": Field.CONTEXT,
    "代码片段": Field.CONTEXT,
}


def folded(text: str) -> str:
    """Full-width signs, digits and spaces as the plain ones; as long as before."""
    return text.translate(_FULL_WIDTH)


def _plain_label(text: str) -> str:
    return re.sub(r"[\s*_`()]", "", folded(text)).lower()


_LABELS: dict[str, Field] = _OTHER_LABELS | {
    _plain_label(label): name for labels in LABELS.values() for name, label in labels.fields.items()
}


@dataclass
class Block:
    """One fenced block of code."""

    line: int
    """Of the opening fence."""
    lines: list[str] = field(default_factory=list)


@dataclass
class Bullet:
    """One of the nine, or a repetition of one."""

    name: Field
    line: int
    words: list[str] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)

    @property
    def text(self) -> str:
        """All of it but code blocks, full-width signs as plain ones."""
        return folded("\n".join(self.words)[:LONGEST_TEXT]).strip()

    @property
    def empty(self) -> bool:
        code = any(line.strip() for block in self.blocks for line in block.lines)
        return not code and self.text.strip("*_` .。").lower() in _EMPTY


@dataclass(eq=False)
class Section:
    """One iteration as it is told."""

    line: int
    heading: str
    number: int | None = None
    time: datetime | None = None
    duration_s: float | None = None
    bullets: list[Bullet] = field(default_factory=list)

    def bullet(self, name: Field) -> Bullet | None:
        return next((bullet for bullet in self.bullets if bullet.name is name), None)

    def text(self, *names: Field) -> str:
        """The words of some bullets together."""
        return "\n".join(bullet.text for bullet in self.bullets if not names or bullet.name in names)


@dataclass
class Document:
    """summary.md as far as it can be read."""

    lines: list[str] = field(default_factory=list)
    sections: list[Section] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    def add(self, line: int, rule: str, message: str, remedy: str, iteration: int | None = None) -> None:
        self.findings.append(
            Finding(file=NAME, line=line, rule=rule, iteration=iteration, message=message, remedy=remedy)
        )


def read_text(raw: bytes, document: Document) -> str:
    """The bytes as text; what is no UTF-8 is a finding and replaced."""
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        document.add(line, "10", "not UTF-8", "write the file as UTF-8")
        text = raw.decode("utf-8-sig", "replace")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def parse(raw: bytes) -> Document:
    """Read summary.md; never raises for what is in it."""
    document = Document()
    if len(raw) > LARGEST:
        document.add(1, "10", f"larger than {LARGEST >> 20} MiB", "a summary holds words, not logs or data")
        return document
    document.lines = read_text(raw, document).split("\n")
    _check_title(document)
    _Reader(document).read()
    for section in document.sections:
        _check_heading(section, document)
    return document


def _check_title(document: Document) -> None:
    titles = [labels.title for labels in LABELS.values()]
    if document.lines[0].strip() not in titles:
        document.add(1, "10", "the first line is not the title", f"begin the file with `{titles[0]}`")


class _Reader:
    """Goes through the lines once."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._fence: tuple[str, Block] | None = None

    def read(self) -> None:
        for number, line in enumerate(self._document.lines, start=1):
            heading = _HEADING.match(folded(line[:LONGEST_LINE]))
            if heading is not None and (self._fence is None or not line[:1].isspace()):
                self._end_fence()
                if len(self._document.sections) == MOST_SECTIONS:
                    self._document.add(
                        1, "2", f"more than {MOST_SECTIONS} iterations (line {number})", "one a round"
                    )
                    return
                self._document.sections.append(Section(line=number, heading=heading[0].strip()))
            elif self._document.sections:
                self._inside(number, line)
        self._end_fence()

    def _inside(self, number: int, line: str) -> None:
        section = self._document.sections[-1]
        if self._fence is not None:
            self._in_code(line)
            return
        fence = _FENCE.match(line)
        if fence is not None and "`" not in fence[2]:
            self._fence = (fence[1], Block(line=number))
            if section.bullets:
                section.bullets[-1].blocks.append(self._fence[1])
            return
        begun = _begun(number, line)
        if begun is not None:
            section.bullets.append(begun)
        elif section.bullets and line.strip() and not re.match(r"^#{1,6}\s", line):
            section.bullets[-1].words.append(line.strip())

    def _in_code(self, line: str) -> None:
        assert self._fence is not None
        opening, block = self._fence
        fence = _FENCE.match(line)
        closes = fence is not None and fence[1][0] == opening[0] and len(fence[1]) >= len(opening)
        if closes and fence is not None and not fence[2].strip():
            self._fence = None
        else:
            block.lines.append(line)

    def _end_fence(self) -> None:
        """A heading or the end of the file inside a block: it was never closed."""
        if self._fence is None:
            return
        number = len(self._document.sections)
        self._document.add(
            self._fence[1].line,
            "7",
            "this code block is never closed",
            "close it with ``` on its own line",
            number,
        )
        self._fence = None


def _begun(number: int, line: str) -> Bullet | None:
    """The bullet that begins on a line, if one of the nine does."""
    short = folded(line[:LONGEST_LINE])
    marked = _BULLET.match(short)
    if marked is None and _BOLD.match(short) is None:
        return None
    body = short if marked is None else marked[1]
    head, colon, _ = body.partition(":")
    if len(head) > 60:
        return None
    name = _LABELS.get(_plain_label(head))
    if name is None:
        return None
    rest = line[len(line) - len(short) + short.index(body) :] if len(line) == len(short) else body
    words = rest[len(head) + len(colon) :].strip().removeprefix("**").strip()
    return Bullet(name=name, line=number, words=[words] if words else [])


def _check_heading(section: Section, document: Document) -> None:
    remedy = "write `## Iteration N (YYYY-MM-DD HH:MM, 耗时 Xs)`"
    heading = _HEADING.match(section.heading)
    assert heading is not None
    parts = _PARTS.match(heading[2])
    words = heading[2].split("(")[0].split()
    told = parts[1] if parts else words[0] if words else ""
    if told.isascii() and told.isdigit() and 0 < len(told) < 7 and int(told) > 0:
        section.number = int(told)
    else:
        document.add(section.line, "2", f"{told[:20]!r} is not the number of an iteration", remedy)
    inside = parts[2] if parts else ""
    section.time = _time(inside)
    duration = _DURATION.search(inside)
    section.duration_s = float(duration[1]) if duration else None
    for missing, what in (
        (section.time, "no time YYYY-MM-DD HH:MM"),
        (section.duration_s, "no duration in s"),
    ):
        if missing is None:
            document.add(section.line, "10", f"the heading has {what}", remedy, section.number)
    if len(heading[1]) != 2:
        document.add(section.line, "10", "the heading is not of level 2", remedy, section.number)


def _time(text: str) -> datetime | None:
    found = _TIME.search(text)
    if found is None:
        return None
    try:
        return datetime.strptime(found[0], "%Y-%m-%d %H:%M")  # noqa: DTZ007 - local, as the format has it
    except ValueError:
        return None


def check_complete(document: Document) -> None:
    """Rule 10: nine bullets in their order, none of them empty."""
    labels = LABELS["zh"].fields
    for section in document.sections:
        found = [bullet.name for bullet in section.bullets]
        missing = [labels[name] for name in FIELDS if name not in found]
        if missing:
            document.add(
                section.line,
                "10",
                f"missing: {', '.join(missing)}",
                "a section has all nine bullets",
                section.number,
            )
        for bullet, message in _misplaced(section):
            document.add(bullet.line, "10", message, "keep the nine bullets in their order", section.number)
        for bullet in section.bullets:
            if bullet.empty:
                rule = "3" if bullet.name in (Field.TRAIN_TYPE, Field.CONFIG) else "10"
                remedy = "write `unknown` where the source doesn't tell" if rule == "3" else "fill it in"
                document.add(bullet.line, rule, f"{labels[bullet.name]} is empty", remedy, section.number)


def _misplaced(section: Section) -> Iterator[tuple[Bullet, str]]:
    labels, seen = LABELS["zh"].fields, list[Field]()
    for bullet in section.bullets:
        name = labels[bullet.name]
        if bullet.name in seen:
            yield bullet, f"{name} stands here a second time"
        elif seen and FIELDS.index(bullet.name) < max(FIELDS.index(earlier) for earlier in seen):
            yield bullet, f"{name} comes too late"
        seen.append(bullet.name)
