"""Looking for hidden items in what an agent left: its code, data, logs and training texts.

It flags, it never changes a score. Items are looked for word by word, and again with digits, names and
identifiers made alike; what the agent was given anyway, and what several items share, proves nothing and
is not looked for.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import Field

from posttrain.core.frozen import Frozen
from posttrain.core.grading import Split
from posttrain.core.scores import Item
from posttrain.reports.audit_text import Form, normal_words, plainly, units

GRAM = 13
"""Words in a row that two texts seldom share by chance."""
COVERAGE = 0.5
"""Share of an item's telling grams that one file must hold."""
TOLERATED = 3
TOLERATED_SHARE = 0.005
"""Items of a split that honest data may hold by accident: so many, or this share if that is more."""
_LEAST_WORDS = 8
"""Shorter items are no evidence: many texts contain them."""
_SHOWN = 25
_SPAN = 300


class Match(Frozen):
    """One hidden item in one file."""

    split: Split
    item: str
    """Its id."""
    kind: Form
    """exact: word for word; alike: with digits, names and identifiers made alike."""
    coverage: float = Field(ge=0.0, le=1.0)
    """Share of the item's telling grams that the file holds."""
    file: str
    span: str
    """What the file says there."""


class SplitAudit(Frozen):
    """Hidden items of one split that the agent's files hold."""

    split: Split
    items: int
    searched: int
    """Items long and peculiar enough to be looked for."""
    found: int
    """Different items that some file holds."""
    tolerated: int
    contaminated: bool
    overlap_share: float | None = None
    """Of procedural tasks: share of the items that the agent's own rows contain, as draws of one space do."""


class Mention(Frozen):
    """A forbidden path or host in a file."""

    what: str
    file: str
    line: int
    text: str


class AuditReport(Frozen):
    """What was found, and how far was looked."""

    splits: tuple[SplitAudit, ...]
    matches: tuple[Match, ...]
    """At most twenty-five a split, the fullest first."""
    mentions: tuple[Mention, ...] = ()
    files: int = 0
    bytes: int = 0
    unread: tuple[str, ...] = ()
    """Files that could not be read as text, or were beyond the limits."""

    @property
    def flags(self) -> tuple[str, ...]:
        """`val_contaminated`, `test_contaminated`."""
        return tuple(f"{audit.split}_contaminated" for audit in self.splits if audit.contaminated)


@dataclass(frozen=True)
class Document:
    """One text of the agent's."""

    name: str
    text: str


@dataclass
class _Wanted:
    """The telling grams of hidden items in one form, by the hash of their words."""

    form: Form
    places: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    """Gram to items."""
    counts: list[int] = field(default_factory=list)
    """Telling grams of each item."""
    ends: dict[int, dict[str, set[str]]] = field(default_factory=dict)
    """Last words of the grams of each length by their first: all other places of a text need no look."""

    def learn(self, words: Sequence[str]) -> set[int]:
        """The grams of one item; a short one is a single gram."""
        length = min(GRAM, len(words))
        if length < _LEAST_WORDS:
            return set()
        ends = self.ends.setdefault(length, {})
        for start in range(len(words) - length + 1):
            ends.setdefault(words[start], set()).add(words[start + length - 1])
        return {gram for _, gram in _grams(words, length, ends)}

    def found_in(self, words: Sequence[str]) -> Iterator[tuple[int, int]]:
        """(place, gram) of all grams of a text that may be an item's."""
        for length, ends in self.ends.items():
            yield from _grams(words, length, ends)


@dataclass(frozen=True)
class _Hidden:
    split: Split
    item: Item


class Searcher:
    """Hidden items, made ready to be looked for in any number of documents."""

    def __init__(
        self,
        items: Mapping[Split, Sequence[Item]],
        *,
        fields: Sequence[str],
        given: Sequence[str],
        procedural: bool = False,
    ) -> None:
        """`fields` are those of a row that the question consists of; `given` is what the agent was given.

        Rows of a procedural task are counted whole and prove nothing: draws of one space meet by chance.
        """
        self._items = dict(items)
        self._procedural = procedural
        self._hidden = [_Hidden(split, item) for split, rows in items.items() for item in rows]
        texts = [question(entry.item, fields) for entry in self._hidden]
        self._whole: dict[str, list[int]] = defaultdict(list)
        for number, text in enumerate(texts):
            self._whole[plainly(text)].append(number)
        forms: tuple[Form, ...] = () if procedural else ("exact", "alike")
        self._wanted = [_prepared(form, texts, given) for form in forms]
        self._matches: dict[int, Match] = {}

    def search(self, document: Document) -> None:
        """Look through one document; what was found is kept."""
        if self._procedural:
            for unit in units(document.text):
                for number in self._whole.get(unit, ()):
                    self._keep(number, "exact", 1.0, document.name, unit)
            return
        for wanted in self._wanted:
            words = normal_words(document.text, wanted.form)
            hits: dict[int, set[int]] = defaultdict(set)
            places: dict[int, int] = {}
            for place, gram in wanted.found_in(words.words):
                for number in wanted.places.get(gram, ()):
                    hits[number].add(gram)
                    places.setdefault(number, place)
            for number, grams in hits.items():
                coverage = len(grams) / wanted.counts[number]
                if coverage >= COVERAGE:
                    span = words.span(places[number], 2 * GRAM)
                    self._keep(number, wanted.form, coverage, document.name, span)

    def _keep(self, number: int, form: Form, coverage: float, file: str, span: str) -> None:
        """The best match of an item: word for word before alike, then the fuller."""
        entry, before = self._hidden[number], self._matches.get(number)
        if before is not None and (before.kind == "exact", before.coverage) >= (form == "exact", coverage):
            return
        self._matches[number] = Match(
            split=entry.split,
            item=entry.item.id,
            kind=form,
            coverage=round(coverage, 4),
            file=file,
            span=span[:_SPAN],
        )

    def report(
        self,
        *,
        mentions: Sequence[Mention] = (),
        files: int = 0,
        size: int = 0,
        unread: Sequence[str] = (),
    ) -> AuditReport:
        """What all documents together held."""
        return AuditReport(
            splits=tuple(self._split(split) for split in self._items),
            matches=tuple(match for split in self._items for match in self._shown(split)),
            mentions=tuple(mentions),
            files=files,
            bytes=size,
            unread=tuple(unread),
        )

    def _split(self, split: Split) -> SplitAudit:
        numbers = [k for k, entry in enumerate(self._hidden) if entry.split == split]
        found = sum(number in self._matches for number in numbers)
        tolerated = max(TOLERATED, int(TOLERATED_SHARE * len(numbers)))
        return SplitAudit(
            split=split,
            items=len(numbers),
            searched=sum(self._procedural or any(w.counts[k] for w in self._wanted) for k in numbers),
            found=found,
            tolerated=tolerated,
            contaminated=found > tolerated and not self._procedural,
            overlap_share=found / len(numbers) if self._procedural and numbers else None,
        )

    def _shown(self, split: Split) -> list[Match]:
        found = [match for match in self._matches.values() if match.split == split]
        return sorted(found, key=lambda match: (match.kind != "exact", -match.coverage, match.item))[:_SHOWN]


def question(item: Item, fields: Sequence[str]) -> str:
    """The question of an item: the fields that its prompt is made of, else all texts but the answer."""
    named = [item.fields[name] for name in fields if name in item.fields]
    chosen: Iterable[Any] = named or [
        v for name, v in item.fields.items() if name not in ("answer", "labels")
    ]
    return "\n".join(value for value in chosen if isinstance(value, str))


def _prepared(form: Form, texts: Sequence[str], given: Sequence[str]) -> _Wanted:
    """The grams of all items that tell something: neither given to the agent nor shared by many items."""
    wanted = _Wanted(form)
    grams = [wanted.learn(normal_words(text, form).words) for text in texts]
    shared = Counter(gram for found in grams for gram in found)
    known = {gram for text in given for _, gram in wanted.found_in(normal_words(text, form).words)}
    for number, found in enumerate(grams):
        # two: the same question may stand in validation and test
        telling = [gram for gram in found if gram not in known and shared[gram] <= 2]
        wanted.counts.append(len(telling))
        for gram in telling:
            wanted.places[gram].append(number)
    return wanted


def _grams(words: Sequence[str], length: int, ends: Mapping[str, set[str]]) -> Iterator[tuple[int, int]]:
    for start in range(len(words) - length + 1):
        lasts = ends.get(words[start])
        if lasts is not None and words[start + length - 1] in lasts:
            yield start, hash(tuple(words[start : start + length]))
