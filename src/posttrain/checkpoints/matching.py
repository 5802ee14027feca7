"""Which tensor of a submission is which of the base's: settled from headers alone, no weight is read.

A name set that differs from the base's only by wrappers, buffers, training-only parts or padding is
repaired, and each repair is a sentence; anything else is refused with what to do about it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from posttrain.checkpoints.architecture import check_architecture, read_config
from posttrain.checkpoints.headers import MERGE, SAVE_AGAIN, TensorInfo, Weights, read_weights
from posttrain.checkpoints.names import candidates, is_adapter, is_buffer, is_quantised, is_training_only
from posttrain.core.errors import Rejected, Unloadable

TAKEN = ("F32", "BF16", "F16")
_HEADS = ("lm_head.weight", "embed_out.weight", "output.weight")
_EMBEDDINGS = (
    "model.embed_tokens.weight",
    "transformer.wte.weight",
    "gpt_neox.embed_in.weight",
    "model.decoder.embed_tokens.weight",
    "embed_tokens.weight",
    "wte.weight",
)
_LISTED = 5
_SAVE_THE_MODEL = (
    "Save the fine-tuned base model itself, not a wrapper around it: "
    "model.save_pretrained(path, safe_serialization=True)."
)


@dataclass(frozen=True)
class Head:
    """The names that a tied output head goes by; `output` is None for a model without one."""

    output: str | None
    embedding: str | None
    tied: bool
    """Whether the base ties them."""

    def is_vocabulary(self, name: str) -> bool:
        """Whether the rows of this tensor stand for tokens."""
        return name in (self.output, self.embedding) and name is not None


@dataclass(frozen=True)
class Taken:
    """Where a tensor of the base's set comes from."""

    info: TensorInfo
    rows: int | None = None
    """The first rows only, where the shape is not the base's."""
    base_rows: bool = False
    """Rows that the submission lacks stay the base's."""


@dataclass(frozen=True)
class Plan:
    """Which tensor of a submission goes where."""

    weights: Weights
    sources: Mapping[str, Taken]
    """By the base's names, in its order; of a head that the base ties too, if the submission brings one."""
    head: str | None
    """Name of a head that the submission brings although the base ties it: compared, then decided."""
    tie: bool
    """The submission ties a head that the base does not."""
    dropped: tuple[str, ...] = ()
    """Names in the submission's files that go nowhere."""
    repairs: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def head_in_files(weights: Weights, config: Mapping[str, Any]) -> Head:
    """The head of a base as its files and config tell it, for those who do not build the model."""
    output = next((name for name in _HEADS if name in weights.tensors), None)
    embedding = next((name for name in _EMBEDDINGS if name in weights.tensors), None)
    tied = bool(config.get("tie_word_embeddings", output is None))
    return Head(output or _HEADS[0], embedding, tied=tied)


def token_count(folder: Path) -> int | None:
    """One more than the highest token id of a folder's tokenizer; None if it cannot be told."""
    try:
        tokenizer = json.loads((folder / "tokenizer.json").read_bytes())
        vocabulary = tokenizer["model"]["vocab"]
        ids = list(vocabulary.values()) if isinstance(vocabulary, dict) else range(len(vocabulary))
        added = [entry["id"] for entry in tokenizer.get("added_tokens") or ()]
        return int(max([*ids, *added])) + 1
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def plan_submission(
    folder: Path,
    base: Weights,
    *,
    base_config: Mapping[str, Any],
    head: Head,
    not_taken: Collection[str] = (),
    tokens: Callable[[], int | None] = lambda: None,
) -> Plan:
    """Match a folder against the base by headers and config; raises Rejected or Unloadable.

    `not_taken` names what the base's files hold besides parameters; `tokens` tells how many tokens the
    base's tokenizer has, asked only where a vocabulary is smaller than the base's.
    """
    weights = read_weights(folder)
    config = read_config(folder)
    notes = check_architecture(config, base_config)
    wanted = dict(base.tensors)
    if head.tied and head.output is not None:
        wanted.pop(head.output, None)
    found = _matched(weights, wanted, head=head, not_taken=not_taken)
    extra_head = _extra_head(found, wanted, head)
    tie = _ties_by_itself(found.own, wanted, head=head, config=config)
    if tie:
        del wanted[head.output or ""]
    _embed_by_head(found, wanted, head)
    _check_names(found, wanted)
    shapes = wanted if extra_head is None else {**wanted, extra_head: wanted[head.embedding or ""]}
    sources = {
        name: _fitted(name, found, shape=info, head=head, tokens=tokens)
        for name, info in shapes.items()
        if name in found.own
    }
    return Plan(
        weights=weights,
        sources=sources,
        head=extra_head,
        tie=tie,
        dropped=tuple(found.dropped),
        repairs=(*weights.repairs, *found.said()),
        notes=notes,
    )


@dataclass
class _Matched:
    """A submission's tensors by the base's names, and what had to be done to get there."""

    own: dict[str, TensorInfo] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)
    renamed: list[tuple[str, str]] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    training_only: list[str] = field(default_factory=list)
    repairs: list[str] = field(default_factory=list)

    def said(self) -> list[str]:
        sentences = []
        if self.renamed:
            old, new = self.renamed[0]
            sentences.append(f"{len(self.renamed)} tensors are renamed ({old} → {new}, …)")
        if self.training_only:
            names = _some(self.training_only)
            sentences.append(
                f"{len(self.training_only)} tensors that only training needs are dropped ({names})"
            )
        return [*sentences, *self.repairs]


def _matched(
    weights: Weights, wanted: Mapping[str, TensorInfo], *, head: Head, not_taken: Collection[str]
) -> _Matched:
    _refuse_other_forms(weights)
    names = wanted.keys() | ({head.output} if head.output else set())
    found = _Matched()
    replaced = {
        name.replace(".modules_to_save.default.", ".original_module.")
        for name in weights.tensors
        if ".modules_to_save." in name
    }
    for name, info in weights.tensors.items():
        target = name if name in names else next((c for c in candidates(name) if c in names), None)
        if name in not_taken or (target is None and is_buffer(name)) or name in replaced:
            found.dropped.append(name)
        elif target is None and is_training_only(name):
            found.dropped.append(name)
            found.training_only.append(name)
        elif target is None:
            found.unknown.append(name)
        elif target in found.own:
            raise Unloadable(
                f"{found.own[target].name} and {name} are both {target}",
                hint="Save the model once, not a wrapper.",
            )
        else:
            found.own[target] = info
            if target != name:
                found.renamed.append((name, target))
    return found


def _refuse_other_forms(weights: Weights) -> None:
    """Adapters, quantised, empty and flattened tensors: whole kinds, by what they look like."""
    names = weights.tensors.keys()
    if any(is_adapter(name) for name in names):
        raise Rejected("the weights hold an adapter's matrices beside the model's", hint=MERGE)
    quantised = [name for name in names if is_quantised(name)]
    if quantised:
        raise Unloadable(
            f"the weights are quantised ({quantised[0]})",
            hint="Save bfloat16: de-quantise (model.dequantize()) or merge into the unquantised base.",
        )
    flat = [name for name in names if "flat_param" in name]
    if flat:
        raise Unloadable(
            f"the weights are flattened as FSDP keeps them ({flat[0]})",
            hint="Save with a full state dict (StateDictType.FULL_STATE_DICT).",
        )
    empty = [tensor.name for tensor in weights.tensors.values() if 0 in tensor.shape]
    if empty:
        raise Unloadable(
            f"{len(empty)} tensors are empty ({_some(empty)})",
            hint="ZeRO-3 keeps parts elsewhere: set stage3_gather_16bit_weights_on_model_save.",
        )


def _extra_head(found: _Matched, wanted: Mapping[str, TensorInfo], head: Head) -> str | None:
    """The head of its own that a submission brings although the base ties it."""
    if not head.tied or head.output is None or head.embedding not in wanted:
        return None
    return head.output if head.output in found.own and head.embedding in found.own else None


def _ties_by_itself(
    own: Mapping[str, TensorInfo],
    wanted: Mapping[str, TensorInfo],
    *,
    head: Head,
    config: Mapping[str, Any] | None,
) -> bool:
    says_tied = config is not None and config.get("tie_word_embeddings") is True
    return not head.tied and head.output in wanted and head.output not in own and says_tied


def _embed_by_head(found: _Matched, wanted: Mapping[str, TensorInfo], head: Head) -> None:
    """Of two tied tensors some savers keep only the head; it is the embedding too."""
    embedding, output = head.embedding, head.output
    if embedding is None or output is None or not head.tied:
        return
    if embedding in wanted and embedding not in found.own and output in found.own:
        found.own[embedding] = found.own.pop(output)
        found.repairs.append(f"{embedding} is absent; {output}, which the base ties to it, is used")


def _check_names(found: _Matched, wanted: Mapping[str, TensorInfo]) -> None:
    missing = [name for name in wanted if name not in found.own]
    problems = []
    if missing:
        problems.append(f"{len(missing)} tensors of the base are missing ({_some(missing)})")
    if found.unknown:
        problems.append(f"{len(found.unknown)} tensors are not the base's ({_some(found.unknown)})")
    if problems:
        fused = any("qkv_proj" in name or "gate_up_proj" in name for name in found.unknown)
        hint = "Split fused projections again, as the base has them." if fused else _SAVE_THE_MODEL
        raise Unloadable("; ".join(problems), hint=hint)


def _fitted(
    name: str, found: _Matched, *, shape: TensorInfo, head: Head, tokens: Callable[[], int | None]
) -> Taken:
    """A tensor in the base's shape; vocabularies may be longer, or lack rows that no token has."""
    info = found.own[name]
    if info.dtype not in TAKEN:
        raise Unloadable(f"{name} is stored as {info.dtype}", hint="Save in bfloat16, float16 or float32.")
    if info.shape == shape.shape:
        return Taken(info)
    if head.is_vocabulary(name) and len(info.shape) == 2 and info.shape[1:] == shape.shape[1:]:
        own, base = info.shape[0], shape.shape[0]
        if own > base:
            found.repairs.append(f"{name}: {own - base} rows beyond the base's vocabulary of {base} are cut")
            return Taken(info, rows=base)
        used = tokens()
        if used is not None and own >= used:
            found.repairs.append(
                f"{name}: {base - own} rows that stand for no token are missing and stay the base's"
            )
            return Taken(info, rows=own, base_rows=True)
    raise Unloadable(
        f"{name} has shape {list(info.shape)}, the base's is {list(shape.shape)}",
        hint="Keep the base's shapes; do not resize embeddings or layers.",
    )


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    more = f", … {len(listed) - _LISTED} more" if len(listed) > _LISTED else ""
    return ", ".join(listed[:_LISTED]) + more


__all__ = ["SAVE_AGAIN", "Head", "Plan", "Taken", "head_in_files", "plan_submission", "token_count"]
