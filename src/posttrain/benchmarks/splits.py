"""Which rows are visible, validation and test: one deterministic rule, keyed by a public or a private salt.

Rows are ordered by the keyed BLAKE3 of their canonical form, so that the order of a file, the machine
and the Python version change nothing. Rows that read the same as a prompt stay in one split.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from blake3 import blake3
from filelock import FileLock

from posttrain.core.errors import PluginError
from posttrain.core.frozen import canonical_json
from posttrain.core.paths import LabPaths
from posttrain.core.scores import Item
from posttrain.core.specs import SplitRule, Splits, TaskSpec
from posttrain.infra.digests import digest_value
from posttrain.infra.files import write_atomic

Salt = Literal["public", "private"]
Row = dict[str, Any]
Rows = Mapping[str, Sequence[Row]]
"""Rows by the name of their file, without `.jsonl`."""

PUBLIC_KEY = blake3(b"posttrain: public split key, version 1").digest()
"""Shipped on purpose: labs that use it have the same splits and can compare."""

_ID_LENGTH = 16
_FIELD = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")


@dataclass(frozen=True)
class Cut:
    """The three splits of one task under one protocol and salt."""

    visible: tuple[Row, ...]
    val: tuple[Item, ...]
    test: tuple[Item, ...]
    notes: tuple[str, ...] = ()
    """What was left out, such as rows of the visible split that repeat a test row."""


def split_key(lab: LabPaths, salt: Salt) -> bytes:
    """The 32-byte key of a salt; a lab's private one is drawn once and kept in `split.salt`, mode 0600."""
    if salt == "public":
        return PUBLIC_KEY
    if not lab.salt.exists():
        lab.home.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{lab.salt}.lock", mode=0o600):
            if not lab.salt.exists():
                write_atomic(lab.salt, secrets.token_hex(32) + "\n", mode=0o600)
    return bytes.fromhex(lab.salt.read_text("ascii").strip())


def order_key(row: Row, key: bytes) -> bytes:
    """Position of a row: keyed BLAKE3 over its canonical JSON."""
    return blake3(canonical_json(row), key=key).digest()


def bucket(text: str, key: bytes) -> int:
    """The tenth of a procedural task's space that a canonical text lies in.

    0 is test, 1 validation, the rest visible. Under the public salt this is the plain BLAKE3 of the
    text mod 10, for anybody to check; under a private one the hash is keyed.
    """
    raw = text.encode("utf-8")
    hasher = blake3(raw) if key == PUBLIC_KEY else blake3(raw, key=key)
    return int.from_bytes(hasher.digest(), "big") % 10


def reads_as(row: Row, template: str) -> str:
    """What of a row a model gets to read, white space evened out: equal texts are equal questions."""
    fields = [name for name in _FIELD.findall(template) if name in row]
    parts = [row[name] for name in fields] if fields else [row]
    texts = [part if isinstance(part, str) else canonical_json(part).decode("utf-8") for part in parts]
    return "\x1f".join(" ".join(text.split()) for text in texts)


def make_items(rows: Iterable[Row], stratify: str | None) -> tuple[Item, ...]:
    """Items in the order of the rows; a row that occurs twice gets a numbered id the second time."""
    items: list[Item] = []
    seen: dict[str, int] = {}
    for row in rows:
        base = digest_value(row)[:_ID_LENGTH]
        seen[base] = seen.get(base, 0) + 1
        name = base if seen[base] == 1 else f"{base}-{seen[base]}"
        items.append(Item(id=name, fields=row, stratum=stratum_of(row, stratify)))
    return tuple(items)


def stratum_of(row: Row, stratify: str | None) -> str | None:
    """The row's value of the stratifying field, None for a task without strata."""
    if stratify is None:
        return None
    if stratify not in row:
        raise PluginError(f"a row has no field {stratify!r}, by which the task is stratified")
    return str(row[stratify])


def round_robin(rows: Sequence[Row], stratify: str | None) -> list[Row]:
    """The first row of every stratum, then the second of each: any prefix is balanced over strata."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(stratum_of(row, stratify) or "", []).append(row)
    named = [groups[name] for name in sorted(groups)]
    longest = max(map(len, named), default=0)
    return [group[index] for index in range(longest) for group in named if index < len(group)]


def cut(rows: Rows, spec: TaskSpec, *, key: bytes, protocol: str, exclude: frozenset[str]) -> Cut:
    """The splits of a task whose rows lie in files.

    `exclude` holds `reads_as` texts of exemplars: they stay visible but are never held out.
    """
    splits = _effective(spec.splits, rows, protocol=protocol)
    pools = _Pools(rows, spec, key=key)
    # validation first, so that `test` or `train` without a size are what is left of the same file
    val = pools.take(splits.val, exclude=exclude)
    test = pools.take(splits.test, exclude=exclude)
    visible = pools.take(splits.train, exclude=frozenset())
    test_texts = {pools.text(row) for row in test}
    val_texts = {pools.text(row) for row in val}
    kept_val = [row for row in val if pools.text(row) not in test_texts]
    kept = [row for row in visible if pools.text(row) not in test_texts | val_texts]
    notes = [
        f"{count} of {whole} {name} rows left out: they repeat a {than} row"
        for name, count, whole, than in (
            ("validation", len(val) - len(kept_val), len(val), "test"),
            ("visible", len(visible) - len(kept), len(visible), "validation or test"),
        )
        if count
    ]
    return Cut(
        visible=tuple(kept),
        val=make_items(kept_val, spec.stratify),
        test=make_items(test, spec.stratify),
        notes=tuple(notes),
    )


def _effective(splits: Splits, rows: Rows, *, protocol: str) -> Splits:
    """The rules after defaults and protocol are resolved."""
    if splits.val is None and splits.test is None and splits.open is None:
        splits = _default_rules(rows, splits)
    if splits.train is not None and "train" not in splits.model_fields_set and "train" not in rows:
        splits = splits.model_copy(update={"train": None})  # a task that states none and writes none has none
    if protocol != "open":
        return splits
    if splits.open is not None:
        return Splits(train=splits.open.train, test=splits.open.test)
    return Splits(train=splits.train, test=splits.test)


def _default_rules(rows: Rows, splits: Splits) -> Splits:
    """Without any rule: val is a tenth of train (at most 500) if there is a test file, else 60/20/20."""
    if "test" in rows:
        size = max(1, min(500, round(0.1 * len(rows.get("train", ())))))
        val = SplitRule.model_validate({"from": "train", "size": size})
        return Splits(train=splits.train, val=val, test=SplitRule.model_validate({"from": "test"}))
    fifth = SplitRule.model_validate({"from": "train", "share": 0.2})
    return Splits(train=splits.train, val=fifth, test=fifth)


class _Pools:
    """The rows of each file that no split has taken yet, in split order, rows that read the same together."""

    def __init__(self, rows: Rows, spec: TaskSpec, *, key: bytes) -> None:
        self._spec = spec
        self._left = {name: self._grouped(file_rows, key) for name, file_rows in rows.items()}
        self._counts = {name: self._count(groups) for name, groups in self._left.items()}

    def text(self, row: Row) -> str:
        return reads_as(row, self._spec.prompt.template)

    def _stratum(self, group: Sequence[Row]) -> str:
        return stratum_of(group[0], self._spec.stratify) or ""

    def _grouped(self, rows: Sequence[Row], key: bytes) -> list[list[Row]]:
        groups: dict[tuple[str, str], list[Row]] = {}
        for row in sorted(rows, key=lambda row: order_key(row, key)):
            groups.setdefault((self._stratum([row]), self.text(row)), []).append(row)
        return list(groups.values())

    def _count(self, groups: Sequence[Sequence[Row]]) -> dict[str, int]:
        counts: dict[str, int] = {}
        for group in groups:
            counts[self._stratum(group)] = counts.get(self._stratum(group), 0) + len(group)
        return counts

    def take(self, rule: SplitRule | None, *, exclude: frozenset[str]) -> list[Row]:
        """The rows of one split, removed from the pool, in split order."""
        if rule is None:
            return []
        if rule.source not in self._left:
            known = ", ".join(sorted(self._left)) or "none"
            raise PluginError(
                f"splits: no file {rule.source}.jsonl was prepared (there are: {known}); without `splits` "
                "rows are cut by the defaults"
            )
        usable = [group for group in self._left[rule.source] if self.text(group[0]) not in exclude]
        taken = self._draw(usable, self._quotas(rule, usable))
        names = {id(group) for group in taken}
        self._left[rule.source] = [group for group in self._left[rule.source] if id(group) not in names]
        return round_robin([row for group in taken for row in group], self._spec.stratify)

    def _quotas(self, rule: SplitRule, usable: Sequence[Sequence[Row]]) -> dict[str, int]:
        """How many rows of each stratum a rule asks for."""
        left = self._count(usable)
        if rule.share is not None:
            return {name: round(rule.share * count) for name, count in self._counts[rule.source].items()}
        if rule.size is None:
            return left
        available = sum(left.values())
        if available < rule.size:
            raise PluginError(
                f"splits: {rule.source}.jsonl has {available} rows left, {rule.size} are asked for; "
                "ask for fewer, or leave `splits` out"
            )
        return _proportional(left, rule.size)

    def _draw(self, groups: Sequence[list[Row]], quotas: Mapping[str, int]) -> list[list[Row]]:
        """Whole groups in split order until each stratum has what it should have."""
        drawn: list[list[Row]] = []
        counts: dict[str, int] = {}
        for group in groups:
            name = self._stratum(group)
            if counts.get(name, 0) + len(group) <= quotas.get(name, 0):
                counts[name] = counts.get(name, 0) + len(group)
                drawn.append(group)
        return drawn


def _proportional(counts: Mapping[str, int], size: int) -> dict[str, int]:
    """`size` shared out over strata by their counts, largest remainders first."""
    total = sum(counts.values())
    exact = {name: size * count / total for name, count in counts.items()}
    quotas = {name: int(value) for name, value in exact.items()}
    by_remainder = sorted(exact, key=lambda name: (quotas[name] - exact[name], name))
    for name in by_remainder[: size - sum(quotas.values())]:
        quotas[name] += 1
    return quotas


def limited(items: Sequence[Item], limit: int | None) -> tuple[Item, ...]:
    """The first `limit` items in split order; all of them for None."""
    return tuple(items) if limit is None else tuple(items[:limit])
