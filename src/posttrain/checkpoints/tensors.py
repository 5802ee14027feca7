"""Taking a submission's tensors into the base's own model, and nothing else of it.

Names and shapes are settled from headers before a single weight is read. Then tensors stream one by
one: finite? equal to the base's? into the model. At no time is more than a few tensors in memory
besides the model itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from posttrain.checkpoints.architecture import read_config
from posttrain.checkpoints.headers import Weights, read_weights
from posttrain.checkpoints.matching import Head, Plan, Taken, plan_submission, token_count
from posttrain.core.errors import InfrastructureError, Unloadable
from posttrain.core.grading import LoadReport

_BITS = {2: torch.int16, 4: torch.int32}
_CHUNK = 1 << 22
_COLUMNS = 64
"""Of a checksum: words of eight bytes, which are summed ten times faster than shorter ones."""
_MUCH_ZEROED = 0.001
"""Share of elements that are exactly 0 where the base's are not; training leaves next to none."""
_Read = Callable[[str], torch.Tensor]


@dataclass(frozen=True)
class Difference:
    """How two tensors differ bit for bit, after both are cast to the lower precision."""

    changed: int
    total: int
    zeroed: int = 0
    """Elements that are 0 where the base's are not."""


@dataclass
class _Counts:
    changed: int = 0
    total: int = 0
    zeroed: int = 0
    unchanged: list[str] = field(default_factory=list)
    tensors: int = 0

    def add(self, name: str, found: Difference) -> None:
        self.changed += found.changed
        self.total += found.total
        self.zeroed += found.zeroed
        self.tensors += 1
        if found.changed == 0:
            self.unchanged.append(name)

    def notes(self) -> Iterator[str]:
        if 0 < len(self.unchanged) < self.tensors:
            yield f"{len(self.unchanged)} of {self.tensors} tensors are exactly the base's"
        if self.zeroed > _MUCH_ZEROED * self.total:
            share = 100 * self.zeroed / self.total
            yield f"{share:.1f} % of the elements are 0 where the base's are not: was saving interrupted?"


class TensorTarget:
    """The base's model as a place to put tensors into, in place and by name.

    A load that raises leaves a model that is nobody's (`whole` is False) until the next one succeeds.
    Nothing of an earlier load survives: first all parameters become NaN, then every one is written, and
    what the device holds has the checksum of what was read. Buffers are never written: they are the
    base's, and that is checked as well.
    """

    def __init__(self, model: Any, base: Path) -> None:
        self._model = model
        self._folder = base
        self._config = read_config(base) or {}
        self._files = read_weights(base)
        self._places = _places(model, self._files.tensors)
        self._head = _head_of(model, self._places)
        known = {name: self._files.tensors[name] for name in self._places}
        self._base = Weights(self._files.files, known)
        self._not_taken = frozenset(self._files.tensors.keys() - known.keys())
        self._buffers = _contents(model.named_buffers())
        self._written: set[int] = set()
        self.whole = True

    @property
    def tied_base(self) -> bool:
        """Whether the base itself writes logits with its embedding."""
        return self._head.tied

    @property
    def head(self) -> str | None:
        """Name of the matrix that logits are written with; None for a model without one."""
        return self._head.output

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """What the model holds now, by the names of the base's files, and its head also where it is tied."""
        for name, place in self._places.items():
            if name != self._head.output:
                yield name, self._model.get_parameter(place)
        if self._head.output is not None:
            yield self._head.output, self._model.get_output_embeddings().weight

    def load_base(self) -> None:
        """Put the base's own tensors back."""
        with self._swapping(), _opened(self._base) as read:
            self._set_head(tied=self._head.tied)
            for name in self._base.tensors:
                self._put(name, read(name))

    def load(self, folder: Path) -> LoadReport:
        """Put a submission's tensors in place of the base's; raises Rejected or Unloadable."""
        self.whole = False
        plan = plan_submission(
            folder,
            self._base,
            base_config=self._config,
            head=self._head,
            not_taken=self._not_taken,
            tokens=partial(token_count, self._folder),
        )
        with self._swapping(), _opened(plan.weights) as read, _opened(self._base) as read_base:
            repairs, counts = self._take(plan, read, read_base)
        return LoadReport(
            dtype=plan.weights.main_dtype(),
            copy_of_base=counts.changed == 0,
            changed_share=counts.changed / counts.total,
            zeroed_share=counts.zeroed / counts.total,
            unchanged_tensors=len(counts.unchanged),
            tensors=counts.tensors,
            repairs=(*plan.repairs, *repairs),
            notes=(*plan.notes, *counts.notes()),
        )

    @contextmanager
    def _swapping(self) -> Iterator[None]:
        """From no weights at all to all of them; InfrastructureError if any other thing came out."""
        self.whole = False
        self._written.clear()
        for parameter in self._model.parameters():
            parameter.data.fill_(float("nan"))
        yield
        left = [name for name, place in self._model.named_parameters() if id(place) not in self._written]
        if left:
            raise InfrastructureError(f"{len(left)} parameters were not written ({left[0]}, …)")
        if _contents(self._model.named_buffers()) != self._buffers:
            raise InfrastructureError("a buffer of the base's model has changed")
        self.whole = True

    def _take(self, plan: Plan, read: _Read, read_base: _Read) -> tuple[list[str], _Counts]:
        repairs: list[str] = []
        counts = _Counts()
        own_head = self._decide_head(plan, read, repairs)
        for name, taken in plan.sources.items():
            if name == plan.head and not own_head:
                continue
            base = read_base(self._base_name(name))
            tensor = _fitted(read(taken.info.name), taken, base)
            _require_finite(name, tensor)
            counts.add(name, differing(tensor, base))
            self._put(name, tensor)
        if plan.tie and self._head.output and self._head.embedding:
            tied = plan.sources[self._head.embedding]
            base = read_base(self._head.output)
            counts.add(self._head.output, differing(_fitted(read(tied.info.name), tied, base), base))
        return repairs, counts

    def _decide_head(self, plan: Plan, read: _Read, repairs: list[str]) -> bool:
        """Tie or untie the model's head as this submission needs it; whether a head of its own is taken."""
        own_head = False
        if plan.head is not None and self._head.embedding is not None:
            own_head = not _equal(plan.sources[plan.head], plan.sources[self._head.embedding], read)
            said = (
                "differs from the embedding and is used"
                if own_head
                else "equals the embedding and is dropped"
            )
            repairs.append(f"{plan.head} {said}")
        if plan.tie:
            repairs.append(f"{self._head.output} is absent and tied to the embedding, as config.json says")
        self._set_head(tied=(self._head.tied and not own_head) or plan.tie)
        return own_head

    def _base_name(self, name: str) -> str:
        """Where the base keeps this tensor: a head that it ties is its embedding."""
        return name if name in self._base.tensors else self._head.embedding or name

    def _set_head(self, *, tied: bool) -> None:
        head = self._model.get_output_embeddings()
        embedding = self._model.get_input_embeddings()
        if head is None:
            return
        is_tied = head.weight is embedding.weight
        if tied and not is_tied:
            head.weight = embedding.weight
        elif not tied and is_tied:
            blank = torch.full_like(embedding.weight, float("nan"))
            head.weight = torch.nn.Parameter(blank, requires_grad=False)

    def _put(self, name: str, tensor: torch.Tensor) -> None:
        place = self._model.get_parameter(self._places.get(name, name))
        with torch.no_grad():
            place.copy_(tensor)
        if torch.finfo(place.dtype).max < torch.finfo(tensor.dtype).max and not bool(place.isfinite().all()):
            raise Unloadable(
                f"{name} holds values too large for {place.dtype}, in which the base is graded",
                hint="Keep weights in the range of the base's.",
            )
        if checksum(place.data) != checksum(tensor.to(place.dtype)):
            raise InfrastructureError(f"{name} on {place.device} is not what was read")
        self._written.add(id(place))


def checksum(tensor: torch.Tensor) -> tuple[int, ...]:
    """Sums of a tensor's bits by columns, worked out where it lies.

    Whatever is missing, stale or shifted gives other sums; lines of 512 bytes that changed places do not.
    """
    flat = tensor.reshape(-1)
    row = _COLUMNS * 8 // flat.element_size()
    whole = flat.numel() - flat.numel() % row
    words = flat[:whole] if flat.storage_offset() * flat.element_size() % 8 == 0 else flat[:whole].clone()
    columns = (
        words.view(torch.int64).view(-1, _COLUMNS).sum(dim=0)
    )  # sums that overflow wrap, everywhere alike
    rest = flat[whole:].view(_BITS[flat.element_size()]).sum(dtype=torch.int64)
    return (*columns.tolist(), int(rest))


def _contents(tensors: Iterable[tuple[str, torch.Tensor]]) -> dict[str, bytes]:
    """The bytes of small tensors, by name."""
    return {
        name: tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes()
        for name, tensor in tensors
    }


def _fitted(tensor: torch.Tensor, taken: Taken, base: torch.Tensor) -> torch.Tensor:
    """A tensor in the base's shape: vocabulary rows that are too many cut, missing ones the base's."""
    if taken.rows is None:
        return tensor
    if taken.base_rows:
        return torch.cat([tensor, base[taken.rows :].to(tensor.dtype)])
    return tensor[: taken.rows]


def _equal(head: Taken, embedding: Taken, read: _Read) -> bool:
    """Whether two tensors of a submission are the same as far as both are taken."""
    one, two = read(head.info.name), read(embedding.info.name)
    rows = min(len(one), len(two), *(taken.rows for taken in (head, embedding) if taken.rows is not None))
    return differing(one[:rows], two[:rows]).changed == 0


def differing(tensor: torch.Tensor, base: torch.Tensor) -> Difference:
    """Compare bit for bit, after both are cast to the lower precision.

    Of two 16-bit types the submission's counts as the lower one.
    """
    lower = tensor.dtype if tensor.element_size() <= base.element_size() else base.dtype
    left, right = tensor.reshape(-1), base.reshape(-1)
    bits = _BITS[lower.itemsize]
    changed = zeroed = 0
    for start in range(0, left.numel(), _CHUNK):
        one = left[start : start + _CHUNK].to(lower)
        two = right[start : start + _CHUNK].to(lower)
        if not torch.equal(one.view(bits), two.view(bits)):
            changed += int((one.view(bits) != two.view(bits)).sum())
            zeroed += one.numel() - int(torch.count_nonzero(one)) - int(((one == 0) & (two == 0)).sum())
    return Difference(changed, left.numel(), zeroed)


def _require_finite(name: str, tensor: torch.Tensor) -> None:
    flat = tensor.reshape(-1)
    for start in range(0, flat.numel(), _CHUNK):
        # a sum is finite only if all its terms are; one that overflows is looked at element by element
        piece = flat[start : start + _CHUNK]
        if not bool(torch.isfinite(piece.sum(dtype=torch.float32))) and not bool(torch.isfinite(piece).all()):
            raise Unloadable(
                f"{name} holds values that are not finite",
                hint="Training diverged. Guard against non-finite loss and gradients; submit an earlier one.",
            )


@contextmanager
def _opened(weights: Weights) -> Iterator[_Read]:
    """Read tensors by name through memory maps."""
    with ExitStack() as stack:
        files = {
            path: stack.enter_context(safe_open(str(path), framework="pt", device="cpu"))
            for path in weights.files
        }
        yield lambda name: files[weights.tensors[name].file].get_tensor(name)


def _places(model: Any, names: Iterable[str]) -> dict[str, str]:
    """Name in the base's files → name of the model's parameter; what is no parameter is left out.

    Some checkpoints leave out the prefix of the inner model. Raises InfrastructureError when a parameter
    would stay without a tensor.
    """
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    prefix = model.base_model_prefix
    places = {}
    for name in names:
        candidates = (name, f"{prefix}.{name}", name.removeprefix(f"{prefix}."))
        found = next((candidate for candidate in candidates if candidate in parameters), None)
        if found is not None:
            places[name] = found
    uncovered = {name for name, _ in model.named_parameters()} - set(places.values())
    if uncovered:
        raise InfrastructureError(
            f"the base model's files lack {len(uncovered)} tensors ({min(uncovered)}, …)"
        )
    return places


def _head_of(model: Any, places: Mapping[str, str]) -> Head:
    """How the base's model writes logits, in the names of the base's files where they have them."""
    output, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    if output is None:
        return Head(None, None, tied=False)
    modules = {id(module): name for name, module in model.named_modules()}
    in_files = {place: name for name, place in places.items()}
    head, source = (f"{modules[id(module)]}.weight" for module in (output, embedding))
    return Head(
        in_files.get(head, head), in_files.get(source, source), tied=output.weight is embedding.weight
    )
