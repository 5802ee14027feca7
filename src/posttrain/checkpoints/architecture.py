"""A submission's config.json read as data: is it the base's architecture, and what else does it say."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from posttrain.core.errors import Rejected, Unloadable

_SHAPE_FIELDS = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
)
_SILENT_FIELDS = frozenset(
    {
        *("_name_or_path", "architectures", "auto_map", "dtype", "torch_dtype", "transformers_version"),
        *("use_cache", "tie_word_embeddings", "vocab_size", "pad_token_id", "bos_token_id", "eos_token_id"),
    }
)
_OTHER = (
    "Fine-tune the assigned base and save that model: model.save_pretrained(path, safe_serialization=True)."
)
_LISTED = 6


def read_config(folder: Path) -> dict[str, Any] | None:
    """config.json as plain data; None if there is none or it is no JSON object."""
    try:
        value = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def check_architecture(config: Mapping[str, Any] | None, base: Mapping[str, Any]) -> tuple[str, ...]:
    """Notes about a submission's config; raises Unloadable for another architecture than the base's.

    The config decides nothing else: the model is built from the base's.
    """
    if config is None:
        return ("no readable config.json; the base's is used",)
    config = _text_part(config, base)
    own_code = "auto_map" in config and "auto_map" not in base
    if own_code and config.get("model_type") != base.get("model_type"):
        raise Rejected("the model needs code of its own (auto_map), which is never loaded", hint=_OTHER)
    for name in ("model_type", *_SHAPE_FIELDS):
        said, wanted = config.get(name), base.get(name)
        # a field that is null is computed from others, and shapes are checked anyway
        if said is not None and wanted is not None and said != wanted:
            raise Unloadable(
                f"another architecture: {name} is {said!r}, the base's is {wanted!r}", hint=_OTHER
            )
    ignored = ("custom code named by config.json is ignored",) if own_code else ()
    return (*ignored, *_differences(config, base))


def _text_part(config: Mapping[str, Any], base: Mapping[str, Any]) -> Mapping[str, Any]:
    """The language model's part of a multimodal wrapper's config, where that is what the base is."""
    inner = config.get("text_config")
    if (
        isinstance(inner, dict)
        and "text_config" not in base
        and inner.get("model_type") == base.get("model_type")
    ):
        return inner
    return config


def _differences(config: Mapping[str, Any], base: Mapping[str, Any]) -> tuple[str, ...]:
    """Fields that say something else than the base's; none of them is taken over."""
    names = sorted(
        name
        for name in config.keys() & base.keys()
        if name not in _SILENT_FIELDS and config[name] != base[name]
    )
    if not names:
        return ()
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    listed = ", ".join(names[:_LISTED]) + more
    return (f"config fields that differ from the base's and are not taken over: {listed}",)
