"""Comparing the weights of two or more checkpoints in chunks: numpy over memory maps, never a whole tensor.

Runs in a process of its own (compare_worker), because the harness holds no numpy.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from posttrain.checkpoints.comparing import TensorFindings
from posttrain.checkpoints.headers import TensorInfo, Weights
from posttrain.checkpoints.matching import Head, Plan, Taken
from posttrain.core.grading import Provenance, SiblingDelta

CHUNK = 1 << 17
"""Elements at a time: in fp32 half a megabyte, so that all of a step stays in a core's cache."""
ALIGNED = 0.5
"""Cosine from which a tensor counts as lying in a sibling's direction."""
_ITEM: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2")}
_SIZE = {"F32": 4, "F16": 2, "BF16": 2}

_NOTHING = np.zeros(0, np.float32)

Raw = NDArray[Any]
"""Elements as they are stored; bfloat16 as its bits."""
Floats = NDArray[np.float32]


@dataclass
class _SiblingSums:
    ds: float = 0.0
    ss: float = 0.0
    dd: float = 0.0
    """Of the elements that the sibling has too."""
    differing: int = 0
    compared: int = 0

    @property
    def cosine(self) -> float | None:
        return None if self.ss <= 0.0 or self.dd <= 0.0 else self.ds / (self.ss * self.dd) ** 0.5


@dataclass
class _Sums:
    """What one tensor adds up to."""

    name: str
    elements: int = 0
    changed: int = 0
    zeroed: int = 0
    not_finite: int = 0
    zero: int = 0
    dd: float = 0.0
    bb: float = 0.0
    siblings: dict[str, _SiblingSums] = field(default_factory=dict)


@dataclass(frozen=True)
class Checkpoint:
    """Tensors of one folder by the base's names."""

    files: tuple[Path, ...]
    tensors: Mapping[str, Taken]

    @classmethod
    def whole(cls, weights: Weights) -> Checkpoint:
        return cls(weights.files, {name: Taken(info) for name, info in weights.tensors.items()})

    @classmethod
    def planned(cls, plan: Plan) -> Checkpoint:
        return cls(plan.weights.files, plan.sources)


def compare(
    submission: Checkpoint,
    base: Weights,
    *,
    head: Head,
    siblings: Mapping[str, Checkpoint],
    threads: int = 2,
) -> tuple[Provenance, TensorFindings]:
    """Distances of a matched submission to its base and to the base's siblings, and faults of its values."""
    with _opened([submission.files, base.files, *(sibling.files for sibling in siblings.values())]) as maps:
        work = _Work(submission, base, head, siblings, maps)
        largest_first = sorted(submission.tensors, key=lambda name: -submission.tensors[name].info.elements)
        with ThreadPoolExecutor(threads) as pool:
            sums = list(pool.map(work.tensor, largest_first))
        equal = work.head_equals_embedding()
    return _provenance(sums, siblings), _findings(sums, list(submission.tensors), equal)


class _Work:
    def __init__(
        self,
        submission: Checkpoint,
        base: Weights,
        head: Head,
        siblings: Mapping[str, Checkpoint],
        maps: Mapping[Path, mmap.mmap],
    ) -> None:
        self._submission = submission
        self._base = base
        self._head = head
        self._siblings = siblings
        self._maps = maps

    def tensor(self, name: str) -> _Sums:
        """All sums over one tensor; a head that the base ties is held against its embedding."""
        taken = self._submission.tensors[name]
        base = self._base.tensors.get(name) or self._base.tensors[self._head.embedding or name]
        own, reference = self._raw(taken.info), self._raw(base)
        length = min(len(own), len(reference))
        others = {
            sibling: found
            for sibling, checkpoint in self._siblings.items()
            if (found := self._counterpart(checkpoint, name, base)) is not None
        }
        sums = _Sums(name, siblings={sibling: _SiblingSums() for sibling in others})
        for start in range(0, length, CHUNK):
            place = slice(start, min(start + CHUNK, length))
            _add(sums, (own[place], taken.info.dtype), (reference[place], base.dtype), others, place)
        for extra in range(length, len(own) if taken.rows is None else length, CHUNK):
            sums.not_finite += _not_finite(own[extra : extra + CHUNK], taken.info.dtype)
        return sums

    def head_equals_embedding(self) -> bool | None:
        """Whether the two tied tensors of a submission that brings both are the same."""
        names = (self._head.output or "", self._head.embedding or "")
        pair = [self._submission.tensors[name] for name in names if name in self._submission.tensors]
        if len(pair) < 2 or pair[0].info.dtype != pair[1].info.dtype:
            return None if len(pair) < 2 else False
        one, two = (self._raw(taken.info) for taken in pair)
        length = min(len(one), len(two))
        return all(
            np.array_equal(one[start : start + CHUNK], two[start : start + CHUNK])
            for start in range(0, length, CHUNK)
        )

    def _counterpart(self, sibling: Checkpoint, name: str, base: TensorInfo) -> tuple[Raw, str] | None:
        """The sibling's tensor, in the base's shape, or a vocabulary of another length."""
        taken = sibling.tensors.get(name) or sibling.tensors.get(self._head.embedding or name)
        if taken is None or taken.info.dtype not in _ITEM or taken.info.shape[1:] != base.shape[1:]:
            return None
        if taken.info.shape != base.shape and not self._head.is_vocabulary(name):
            return None
        return self._raw(taken.info), taken.info.dtype

    def _raw(self, info: TensorInfo) -> Raw:
        return np.frombuffer(
            self._maps[info.file], dtype=_ITEM[info.dtype], count=info.elements, offset=info.start
        )


def _add(
    sums: _Sums,
    own: tuple[Raw, str],
    base: tuple[Raw, str],
    others: Mapping[str, tuple[Raw, str]],
    place: slice,
) -> None:
    """One chunk."""
    sums.elements += len(own[0])
    left, right = _lowest(own, base)
    same = left.dtype == right.dtype and bool(np.array_equal(left, right))
    reference = _floats(*base)
    energy = _dot(reference, reference)
    sums.bb += energy
    value = reference if same and own[1] == base[1] else _floats(*own)
    if value is reference and not np.isfinite(energy):
        sums.not_finite += _not_finite(*own)
    change = _NOTHING if value is reference else value - reference
    length = _dot(change, change)
    if np.isfinite(length):
        sums.dd += length
    else:  # or so large that the sum is: then there is no distance to speak of, and no fault
        sums.not_finite += _not_finite(*own)
    if not same:
        sums.changed += int(np.count_nonzero(left != right))
        zero = value == 0
        sums.zero += int(np.count_nonzero(zero))
        sums.zeroed += int(np.count_nonzero(zero & (reference != 0))) if zero.any() else 0
    for name, (elements, dtype) in others.items():
        chunk = _Chunk(own, value, reference, change)
        _add_sibling(sums.siblings[name], (elements[place], dtype), chunk)


@dataclass(frozen=True)
class _Chunk:
    """A piece of the submission and, in fp32, its values, the base's and their difference, if any."""

    own: tuple[Raw, str]
    value: Floats
    reference: Floats
    change: Floats


def _add_sibling(sums: _SiblingSums, other: tuple[Raw, str], chunk: _Chunk) -> None:
    length = min(len(other[0]), len(chunk.value))
    if length == 0:
        return
    other = (other[0][:length], other[1])
    direction = _floats(*other) - chunk.reference[:length]
    sums.compared += length
    sums.ss += _dot(direction, direction)
    if len(chunk.change):
        change = chunk.change[:length]
        sums.ds += _dot(change, direction)
        sums.dd += _dot(change, change)
    left, right = _lowest((chunk.own[0][:length], chunk.own[1]), other)
    if not np.array_equal(left, right):
        sums.differing += 1


def _dot(one: Floats, two: Floats) -> float:
    return float(np.dot(one, two))


def _floats(raw: Raw, dtype: str) -> Floats:
    if dtype == "F32":
        return raw
    if dtype == "F16":
        return raw.astype(np.float32)
    wide = np.zeros((len(raw), 2), np.uint16)
    wide[:, 1] = raw  # the upper half of a float32 is the bfloat16
    return wide.view(np.float32).reshape(-1)


def _lowest(own: tuple[Raw, str], base: tuple[Raw, str]) -> tuple[Raw, Raw]:
    """The bits of both in the lower precision; of two 16-bit types the first's counts as the lower one."""
    lower = own[1] if _SIZE[own[1]] <= _SIZE[base[1]] else base[1]
    return _bits(*own, lower), _bits(*base, lower)


def _bits(raw: Raw, dtype: str, wanted: str) -> Raw:
    if dtype == wanted:
        return raw.view(np.uint32) if wanted == "F32" else raw.view(np.uint16)
    values = _floats(raw, dtype)
    if wanted == "F16":
        with np.errstate(over="ignore"):
            return values.astype(np.float16).view(np.uint16)
    bits = values.view(np.uint32)  # round to nearest, ties to even, as torch does
    return ((bits + np.uint32(0x7FFF) + ((bits >> 16) & np.uint32(1))) >> 16).astype(np.uint16)


def _not_finite(raw: Raw, dtype: str) -> int:
    return int(np.count_nonzero(~np.isfinite(_floats(raw, dtype))))


@contextmanager
def _opened(groups: Iterable[Sequence[Path]]) -> Iterator[dict[Path, mmap.mmap]]:
    """Read-only maps of all files; what is read of them is the system's cache, not our memory."""
    with ExitStack() as stack:
        maps: dict[Path, mmap.mmap] = {}
        for path in {path for group in groups for path in group}:
            file = stack.enter_context(path.open("rb"))
            maps[path] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        yield maps


def _provenance(sums: Sequence[_Sums], siblings: Iterable[str]) -> Provenance:
    elements = sum(tensor.elements for tensor in sums)
    changed = sum(tensor.changed for tensor in sums)
    base, change = sum(tensor.bb for tensor in sums), sum(tensor.dd for tensor in sums)
    return Provenance(
        copy_of_base=changed == 0,
        changed_share=changed / elements,
        relative_l2=_finite((change / base) ** 0.5) if base > 0 else 0.0,
        siblings=tuple(_sibling(name, sums, elements) for name in siblings),
    )


def _sibling(name: str, sums: Sequence[_Sums], elements: int) -> SiblingDelta:
    found = [(tensor, tensor.siblings[name]) for tensor in sums if name in tensor.siblings]
    whole = _SiblingSums()
    for _, part in found:
        whole.ds += part.ds
        whole.ss += part.ss
        whole.dd += part.dd
        whole.differing += part.differing
        whole.compared += part.compared
    aligned = sum(part.compared for _, part in found if (part.cosine or 0.0) >= ALIGNED)
    cosine = whole.cosine
    return SiblingDelta(
        name=name,
        identical=whole.differing == 0 and whole.compared == elements,
        cosine=None if cosine is None else round(_finite(cosine), 6),
        coefficient=round(_finite(whole.ds / whole.ss), 6) if whole.ss > 0 else None,
        aligned_share=round(aligned / elements, 6),
        compared_share=round(whole.compared / elements, 6),
    )


def _finite(value: float) -> float:
    return value if np.isfinite(value) else 0.0


def _findings(sums: Sequence[_Sums], order: Sequence[str], equal: bool | None) -> TensorFindings:
    by_name = {tensor.name: tensor for tensor in sums}
    ordered = [by_name[name] for name in order]
    elements = sum(tensor.elements for tensor in sums)
    return TensorFindings(
        not_finite=tuple(tensor.name for tensor in ordered if tensor.not_finite),
        zeroed=tuple(t.name for t in ordered if t.zero == t.elements and t.zeroed),
        unchanged=tuple(tensor.name for tensor in ordered if tensor.changed == 0),
        zeroed_share=sum(tensor.zeroed for tensor in sums) / elements,
        tensors=len(sums),
        head_equals_embedding=equal,
    )
