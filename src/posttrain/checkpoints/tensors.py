"""Taking a submission's tensors into the base's own model, and nothing else of it.

Names and shapes are settled from headers before a single weight is read. Then tensors stream one by
one: finite? equal to the base's? into the model. At no time is more than a few tensors in memory
besides the model itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from posttrain.checkpoints.architecture import check_architecture, read_config
from posttrain.checkpoints.headers import MERGE, TensorInfo, Weights, read_weights
from posttrain.core.errors import InfrastructureError, Rejected, Unloadable
from posttrain.core.grading import LoadReport

_TAKEN = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
_BITS = {2: torch.int16, 4: torch.int32}
_CHUNK = 1 << 22
_LISTED = 5
_Read = Callable[[str], torch.Tensor]


@dataclass(frozen=True)
class Head:
    """The names that a tied output head goes by; `output` is None for a model without one."""

    output: str | None
    embedding: str | None
    tied: bool
    """Whether the base ties them."""


@dataclass(frozen=True)
class Plan:
    """Which tensor of a submission goes where, settled from headers alone."""

    weights: Weights
    names: tuple[str, ...]
    """Of the base's set, in order."""
    head: str | None
    """Name of a head that the submission brings although the base ties it: compared, then decided."""
    tie: bool
    """The submission ties a head that the base does not."""
    notes: tuple[str, ...]


@dataclass
class _Counts:
    changed: int = 0
    total: int = 0

    def add(self, other: tuple[int, int]) -> None:
        self.changed += other[0]
        self.total += other[1]


def plan_submission(
    folder: Path,
    base: Weights,
    *,
    base_config: Mapping[str, Any],
    head: Head,
    not_taken: Collection[str] = (),
) -> Plan:
    """Match a folder against the base by headers and config; raises Rejected or Unloadable.

    `not_taken` names what the base's files hold besides parameters.
    """
    weights = read_weights(folder)
    config = read_config(folder)
    notes = check_architecture(config, base_config)
    own = {name: tensor for name, tensor in weights.tensors.items() if not _is_buffer(name, not_taken)}
    wanted = dict(base.tensors)
    _refuse_adapters(own)
    extra_head = None
    if head.tied and head.output is not None and head.embedding is not None:
        wanted.pop(head.output, None)
        if head.output in own:
            extra_head = head.output
            wanted[extra_head] = wanted[head.embedding]
    tie = _ties_by_itself(own, wanted, head=head, config=config)
    if tie:
        del wanted[head.output or ""]
    _check_names(own, wanted)
    _check_shapes(own, wanted)
    return Plan(weights, tuple(wanted), extra_head, tie, notes)


def _ties_by_itself(
    own: Mapping[str, TensorInfo],
    wanted: Mapping[str, TensorInfo],
    *,
    head: Head,
    config: Mapping[str, Any] | None,
) -> bool:
    says_tied = config is not None and config.get("tie_word_embeddings") is True
    return not head.tied and head.output in wanted and head.output not in own and says_tied


def _is_buffer(name: str, not_taken: Collection[str]) -> bool:
    return name in not_taken or name.endswith("rotary_emb.inv_freq")


def _refuse_adapters(own: Iterable[str]) -> None:
    if any(".lora_A" in name or ".lora_B" in name or "lora_embedding_" in name for name in own):
        raise Rejected("the weights hold an adapter's matrices beside the model's", hint=MERGE)


def _check_names(own: Mapping[str, TensorInfo], wanted: Mapping[str, TensorInfo]) -> None:
    missing = [name for name in wanted if name not in own]
    unknown = [name for name in own if name not in wanted]
    problems = []
    if missing:
        problems.append(f"{len(missing)} tensors of the base are missing ({_some(missing)})")
    if unknown:
        problems.append(f"{len(unknown)} tensors are not the base's ({_some(unknown)})")
    if problems:
        raise Unloadable(
            "; ".join(problems),
            hint="Save the fine-tuned base model itself, not a wrapper around it: "
            "model.save_pretrained(path, safe_serialization=True).",
        )


def _check_shapes(own: Mapping[str, TensorInfo], wanted: Mapping[str, TensorInfo]) -> None:
    for name, base in wanted.items():
        tensor = own[name]
        if tensor.shape != base.shape:
            raise Unloadable(
                f"{name} has shape {list(tensor.shape)}, the base's is {list(base.shape)}",
                hint="Keep the base's shapes; do not resize embeddings or layers.",
            )
        if tensor.dtype not in _TAKEN:
            raise Unloadable(
                f"{name} is stored as {tensor.dtype}", hint="Save in bfloat16, float16 or float32."
            )


def _some(names: list[str]) -> str:
    more = f", … {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more


class TensorTarget:
    """The base's model as a place to put tensors into, in place and by name.

    A load that raises leaves the model half filled (`whole` is False) until the next one succeeds;
    every load writes every parameter, so nothing of an earlier one survives. Buffers are never written:
    they are the base's.
    """

    def __init__(self, model: Any, base: Path) -> None:
        self._model = model
        self._config = read_config(base) or {}
        self._files = read_weights(base)
        self._places = _places(model, self._files.tensors)
        self._head = _head_of(model, self._places)
        known = {name: self._files.tensors[name] for name in self._places}
        self._base = Weights(self._files.files, known)
        self._not_taken = frozenset(self._files.tensors.keys() - known.keys())
        self.whole = True

    def load_base(self) -> None:
        """Put the base's own tensors back."""
        self.whole = False
        with _opened(self._base) as read:
            names = tuple(self._base.tensors)
            self._set_head(tied=self._head.tied)
            for name in names:
                self._put(name, read(name))
        self.whole = True

    def load(self, folder: Path) -> LoadReport:
        """Put a submission's tensors in place of the base's; raises Rejected or Unloadable."""
        plan = plan_submission(
            folder, self._base, base_config=self._config, head=self._head, not_taken=self._not_taken
        )
        self.whole = False
        with _opened(plan.weights) as read, _opened(self._base) as read_base:
            notes, counts = self._take(plan, read, read_base)
        self.whole = True
        return LoadReport(
            dtype=plan.weights.main_dtype(),
            copy_of_base=counts.changed == 0,
            changed_share=counts.changed / counts.total,
            notes=(*plan.notes, *notes),
        )

    def _take(self, plan: Plan, read: _Read, read_base: _Read) -> tuple[list[str], _Counts]:
        notes: list[str] = []
        counts = _Counts()
        own_head = self._decide_head(plan, read, notes)
        for name in plan.names:
            if name == plan.head and not own_head:
                continue
            tensor = read(name)
            _require_finite(name, tensor)
            counts.add(differing(tensor, read_base(self._base_name(name))))
            self._put(name, tensor)
        if plan.tie and self._head.output and self._head.embedding:
            tied = read(self._head.embedding)
            counts.add(differing(tied, read_base(self._head.output)))
        return notes, counts

    def _decide_head(self, plan: Plan, read: _Read, notes: list[str]) -> bool:
        """Tie or untie the model's head as this submission needs it; whether a head of its own is taken."""
        own_head = False
        if plan.head is not None and self._head.embedding is not None:
            changed, _ = differing(read(plan.head), read(self._head.embedding))
            own_head = changed > 0
            said = (
                "differs from the embedding and is used"
                if own_head
                else "equals the embedding and is dropped"
            )
            notes.append(f"{plan.head} {said}")
        if plan.tie:
            notes.append(f"{self._head.output} is absent and tied to the embedding, as config.json says")
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
            head.weight = torch.nn.Parameter(torch.empty_like(embedding.weight), requires_grad=False)

    def _put(self, name: str, tensor: torch.Tensor) -> None:
        place = self._model.get_parameter(self._places.get(name, name))
        with torch.no_grad():
            place.copy_(tensor)
        if torch.finfo(place.dtype).max < torch.finfo(tensor.dtype).max and not bool(place.isfinite().all()):
            raise Unloadable(
                f"{name} holds values too large for {place.dtype}, in which the base is graded",
                hint="Keep weights in the range of the base's.",
            )


def differing(tensor: torch.Tensor, base: torch.Tensor) -> tuple[int, int]:
    """(elements that differ, elements) bit for bit, after both are cast to the lower precision.

    Of two 16-bit types the submission's counts as the lower one.
    """
    lower = tensor.dtype if tensor.element_size() <= base.element_size() else base.dtype
    left, right = tensor.reshape(-1), base.reshape(-1)
    bits = _BITS[lower.itemsize]
    changed = 0
    for start in range(0, left.numel(), _CHUNK):
        one = left[start : start + _CHUNK].to(lower).view(bits)
        two = right[start : start + _CHUNK].to(lower).view(bits)
        if not torch.equal(one, two):
            changed += int((one != two).sum())
    return changed, left.numel()


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
