"""Rules 3 and 7: what a section says of the code, held against the scripts themselves."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from posttrain.reports.summaries import told
from posttrain.reports.summaries.facts import Facts
from posttrain.reports.summaries.findings import Note
from posttrain.reports.summaries.hyper import Reading, Setting, read_script, together, unqualified
from posttrain.reports.summaries.script import Script, names_in, plain_lines
from posttrain.reports.summaries.text import NAME, Block, Bullet, Document, Section
from posttrain.reports.summaries.timing import Timeline
from posttrain.reports.summaries.versions import Versions
from posttrain.reports.summaries.words import Field, TrainType

KEY_LINES = (3, 5)
CONTEXT_LINES = (15, 40)
MOST_READ = 2 << 20
"""Characters of scripts whose syntax is read; what comes after is not checkable."""
IDLE = (TrainType.COPY_MODEL, TrainType.PLACEHOLDER, TrainType.UNKNOWN)
_ELIDED = re.compile(r"^(?:#\s*)?(?:\.{3}|…)|^#\s*(?:省略|omitted)", re.IGNORECASE)
_NUMBERED = re.compile(r"^L?\d{1,6}\s*[:|]?\s")
"""Numbers of lines, as `cat -n` writes them."""
_RANGE = re.compile(r"\bL?(\d{1,6})\s*[-–~]\s*L?(\d{1,6})\b")
_LITERAL = re.compile(r"\d[\d_]{0,20}(?:\.\d{0,20})?(?:[eE][-+]?\d{1,3})?|\.\d{1,20}")
DEFAULTS: dict[str, tuple[float, ...]] = {
    "lr": (5e-5, 1e-6, 2e-5, 1e-5, 1e-3, 1e-4),
    "batch": (8.0,),
    "epochs": (3.0,),
    "grad_accum": (),
    "num_generations": (8.0,),
    "r": (8.0,),
    "lora_alpha": (8.0,),
    "lora_dropout": (),
    "weight_decay": (0.01,),
    "warmup_ratio": (),
    "beta": (0.04, 0.1),
    "temperature": (0.9,),
}
"""Parameters that stand in a script if they were set, with what libraries take where they were not."""
_INLINE = re.compile(r"`+([^`\n]+)`+")


class Code:
    """Checks what a section says of its code."""

    def __init__(self, document: Document, facts: Facts, line: Timeline, notes: list[Note]) -> None:
        self._document = document
        self._facts = facts
        self._line = line
        self._versions = Versions(document, facts, line)
        self._notes = notes
        self._read: dict[Script, Reading] = {}
        self._size = 0
        self._together: dict[tuple[Script, ...], Reading] = {}
        self._lines: dict[tuple[Script, ...], tuple[set[str], str]] = {}

    def check(self, section: Section) -> None:
        versions, certain = self._versions.of(section)
        readings = [self._reading(scripts) for scripts in versions if scripts]
        self._check_type(section, readings, certain)
        self._check_config(section, readings, certain)
        self._check_sizes(section)
        for name in (Field.KEY_CODE, Field.CONTEXT):
            bullet = section.bullet(name)
            if bullet is not None:
                self._check_quotes(section, bullet, versions, certain)

    def _add(
        self, section: Section, bullet_line: int, rule: str, told_as: tuple[str, str], *, certain: bool
    ) -> None:
        """A finding (message and remedy), or a note where the code may have been another then."""
        if certain:
            self._document.add(bullet_line, rule, *told_as, section.number)
        else:
            self._note(section, bullet_line, f"{told_as[0]} (the code of that time is not kept)")

    def _note(self, section: Section, line: int, message: str) -> None:
        self._notes.append(Note(file=NAME, line=line, iteration=section.number, message=message))

    def _reading(self, scripts: Sequence[Script]) -> Reading:
        """What scripts say together, each read once, and so each set of them."""
        key = tuple(scripts)
        if key not in self._together:
            for script in scripts:
                if script not in self._read:
                    self._size += len(script.text)
                    large = self._size > MOST_READ
                    self._read[script] = Reading(parsed=False) if large else read_script(script)
            self._together[key] = together(self._read[script] for script in scripts)
        return self._together[key]

    def _texts(self, scripts: Sequence[Script]) -> tuple[set[str], str]:
        """The lines of scripts, and all of them without spaces."""
        key = tuple(scripts)
        if key not in self._lines:
            lines = {line for script in scripts for line in plain_lines(script.text)}
            packed = "\n".join("".join(script.text.split()) for script in scripts)
            self._lines[key] = lines, packed
        return self._lines[key]

    # --- rule 3

    def _check_type(self, section: Section, readings: Sequence[Reading], certain: bool) -> None:
        bullet = section.bullet(Field.TRAIN_TYPE)
        if bullet is None or bullet.empty:
            return
        kind = told.train_type(section)
        if not isinstance(kind, TrainType):
            self._document.add(
                bullet.line,
                "3",
                f"{kind!r} is no train type",
                f"one of {', '.join(member.value for member in TrainType)}",
                section.number,
            )
            return
        possible = {found for reading in readings for found in reading.types}
        if possible & set(IDLE):
            possible |= set(IDLE)
        if not possible or any(not reading.parsed or not reading.types for reading in readings):
            if kind is not TrainType.UNKNOWN:
                self._note(section, bullet.line, f"train type {kind.value}: the source does not tell")
            return
        if kind in possible or self._copied(section, kind) or self._never_begun(section, kind):
            return
        there = " or ".join(sorted(found.value for found in possible))
        self._add(
            section,
            bullet.line,
            "3",
            (f"train type {kind.value}: the code says {there}", "read it from the source"),
            certain=certain,
        )

    def _never_begun(self, section: Section, kind: TrainType) -> bool:
        """A round that shows no code and need not have handed in may not know: the code is older."""
        window, key = self._line.of(section), section.bullet(Field.KEY_CODE)
        handed = window is not None and bool(window.certain)
        shown = key is not None and (key.blocks or not told.nothing(key.text))
        return kind is TrainType.UNKNOWN and not handed and not shown

    def _copied(self, section: Section, kind: TrainType) -> bool:
        """A round that hands in the base is a copy, whatever else lies in code/."""
        if kind not in (TrainType.COPY_MODEL, TrainType.PLACEHOLDER):
            return False
        window = self._line.of(section)
        own = () if window is None else window.candidates
        return not own or any(entry.copy_of_base or entry.improvement == 0.0 for entry in own)

    def _check_config(self, section: Section, readings: Sequence[Reading], certain: bool) -> None:
        bullet = section.bullet(Field.CONFIG)
        if bullet is None or bullet.empty:
            return
        claimed = told.config(section)
        if not claimed:
            words = bullet.text.strip("`*. ").lower()
            if not re.match(r"unknown|n/?a|none|无|未知", words):
                self._document.add(
                    bullet.line,
                    "3",
                    "no name=value in it",
                    "write lr=…, batch=…, or `unknown`",
                    section.number,
                )
            return
        if not readings:
            self._note(section, bullet.line, "hyper-parameters: there is no script to read them from")
            return
        for name, value in claimed.items():
            verdict = self._holds(name, value, readings)
            if verdict is None:
                self._note(section, bullet.line, f"{name}={value}: not checkable from the source")
            elif verdict:
                self._add(
                    section,
                    bullet.line,
                    "3",
                    (f"{name}={value}: the code says {verdict}", "read it from the source"),
                    certain=certain,
                )

    def _holds(self, name: str, value: str, readings: Sequence[Reading]) -> str | None:
        """Nothing if a version has the value, what it is if all have another, None if nobody knows."""
        others: list[str] = []
        unknown = False
        for reading in readings:
            settings = reading.settings.get(name) or reading.settings.get(unqualified(name), [])
            if any(same(value, found) for setting in settings for found in setting.values.found):
                return ""
            deciding = [setting for setting in settings if setting.strong] or settings
            if not deciding or not all(self._fixed(setting) for setting in deciding):
                unknown = True
            if self._overridden(value, deciding):
                return ""
            if not _comparable(value, deciding):
                unknown = True
            others += [_shown(found) for setting in deciding for found in setting.values.found]
        if not others and self._nowhere(unqualified(name), value, readings):
            return "nothing of it"
        if unknown or not others:
            return None
        return " or ".join(dict.fromkeys(others))

    def _nowhere(self, name: str, value: str, readings: Sequence[Reading]) -> bool:
        """Whether code that can be read whole has neither a parameter nor that number, and no library has."""
        number = told.number(_bare(value))
        if name not in DEFAULTS or number is None or number.value in (0.0, 1.0, *DEFAULTS[name]):
            return False
        if any(not r.parsed or r.open or r.settings.get(name) or not r.settings for r in readings):
            return False
        texts = [script.text for script in self._facts.scripts]
        texts += [script.text for moment in self._facts.moments for script in moment.scripts]
        texts += [log.text for log in self._facts.logs]
        return not any(same(value, match[0]) for text in texts for match in _LITERAL.finditer(text))

    def _fixed(self, setting: Setting) -> bool:
        return setting.values.complete and not setting.values.environment

    def _overridden(self, value: str, settings: Sequence[Setting]) -> bool:
        """Whether a command line with this value for an option is to be seen in the code or a log."""
        flags = {flag.lstrip("-").replace("-", "[-_]") for s in settings for flag in s.values.flags if flag}
        if not flags:
            return False
        wanted = re.compile(rf"--?(?:{'|'.join(sorted(flags))})[\"',\s=]+([-+\w.]+)")
        texts = [log.text for log in self._facts.logs] + [script.text for script in self._facts.scripts]
        return any(same(value, match[1]) for text in texts for match in wanted.finditer(text))

    # --- rule 7

    def _check_sizes(self, section: Section) -> None:
        kind = told.train_type(section)
        key, context = section.bullet(Field.KEY_CODE), section.bullet(Field.CONTEXT)
        if key is not None and not key.empty and isinstance(kind, TrainType) and kind not in IDLE:
            count = sum(len(plain_lines("\n".join(block.lines))) for block in key.blocks) or len(key.words)
            if not KEY_LINES[0] <= count <= KEY_LINES[1]:
                self._document.add(
                    key.line, "7", f"key code has {count} lines", "quote 3 to 5 lines", section.number
                )
        others = [block for b in section.bullets if b.name is not Field.KEY_CODE for block in b.blocks]
        if len(others) > 1:
            self._document.add(
                others[1].line, "7", "a second long snippet", "at most one an iteration", section.number
            )
        if context is not None and not context.empty:
            self._check_context(section, context, kind)

    def _check_context(self, section: Section, context: Bullet, kind: TrainType | str) -> None:
        same_as = told.same_as(context.text)
        if same_as is not None:
            known = {other.number for other in self._document.sections if other.line < section.line}
            if same_as not in known:
                self._document.add(
                    context.line,
                    "7",
                    f"the same as Iteration {same_as}, which is none before",
                    "name an earlier one",
                    section.number,
                )
        for block in context.blocks:
            count = len([line for line in block.lines if line.strip()])
            if len(block.lines) > CONTEXT_LINES[1]:
                self._document.add(
                    block.line,
                    "7",
                    f"the snippet has {len(block.lines)} lines",
                    "quote at most 40",
                    section.number,
                )
            elif len(block.lines) < CONTEXT_LINES[0] and not self._short_script(count):
                self._document.add(
                    block.line,
                    "7",
                    f"the snippet has {len(block.lines)} lines",
                    "quote 15 to 40",
                    section.number,
                )
        if not context.blocks and same_as is None and isinstance(kind, TrainType) and kind not in IDLE:
            self._document.add(
                context.line,
                "7",
                "neither a snippet nor `与 Iteration N 相同（无变更）`",
                "quote 15 to 40 lines",
                section.number,
            )

    def _short_script(self, count: int) -> bool:
        """Whether a script has no more lines than were quoted."""
        return any(len(plain_lines(script.text)) <= count for script in self._facts.scripts)

    def _check_quotes(
        self, section: Section, bullet: Bullet, versions: Sequence[Sequence[Script]], certain: bool
    ) -> None:
        blocks = bullet.blocks or list(_inline(bullet))
        scripts = [script for version in versions for script in version]
        if not scripts:
            if blocks:
                self._note(section, bullet.line, "code: there is no script to compare it with")
            return
        known, packed = self._texts(scripts)
        for block in blocks:
            for offset, line in enumerate(block.lines, start=1 if bullet.blocks else 0):
                plain = " ".join(line.split())
                bare = _NUMBERED.sub("", plain)
                if not plain or plain in known or bare in known or _ELIDED.match(plain):
                    continue
                if "".join(plain.split()) in packed:
                    continue
                names = ", ".join(dict.fromkeys(script.name for script in scripts))
                self._add(
                    section,
                    block.line + offset,
                    "7",
                    (f"`{plain[:60]}` is not in {names[:100]}", "quote the script as it is"),
                    certain=certain,
                )
                break
        if bullet.name is Field.CONTEXT:
            self._check_range(section, bullet, scripts, certain)

    def _check_range(
        self, section: Section, bullet: Bullet, scripts: Sequence[Script], certain: bool
    ) -> None:
        longest = max(script.text.count("\n") + 1 for script in scripts)
        named = names_in(bullet.text)
        missing = [name for name in named if not any(script.name.endswith(name) for script in scripts)]
        if missing:
            self._note(section, bullet.line, f"{missing[0]} is not below code/")
            return
        for match in _RANGE.finditer(bullet.text):
            first, last = int(match[1]), int(match[2])
            if last < first or last > longest:
                self._add(
                    section,
                    bullet.line,
                    "7",
                    (f"lines {first}-{last}: the script has {longest}", "name the lines that are quoted"),
                    certain=certain,
                )


def _inline(bullet: Bullet) -> Iterator[Block]:
    """Code in back-ticks, where there is no block."""
    if bullet.name is not Field.KEY_CODE:
        return
    for match in _INLINE.finditer(bullet.text):
        yield Block(line=bullet.line, lines=[match[1]])


def same(claimed: str, found: object) -> bool:
    """Whether a value in a summary is one in a script: numbers by value, words by their letters."""
    left, right = told.number(_bare(claimed)), told.number(_bare(str(found)))
    if isinstance(found, bool):
        return claimed.strip("`'\" ").lower() in (
            str(found).lower(),
            str(int(found)),
            "yes" if found else "no",
        )
    if left is not None and right is not None:
        return abs(left.value - right.value) <= 1e-9 * max(abs(left.value), abs(right.value))
    return _bare(claimed).lower() == _bare(str(found)).lower()


def _comparable(claimed: str, settings: Sequence[Setting]) -> bool:
    """Whether a claim is as plain as what it is compared with: `2x4` is not just another number than 2."""
    numbers = any(_is_number(found) for setting in settings for found in setting.values.found)
    return not numbers or told.number(_bare(claimed)) is not None


def _is_number(found: object) -> bool:
    return told.number(_bare(str(found))) is not None and not isinstance(found, bool)


def _bare(text: str) -> str:
    return text.strip("`'\" ")


def _shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)[:40]
