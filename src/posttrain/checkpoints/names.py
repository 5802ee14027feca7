"""What tensor names tell: wrappers around a model, buffers, parts that only training needs, other forms."""

from __future__ import annotations

import re
from collections.abc import Iterator

_WRAPPERS = (
    "module.",  # DistributedDataParallel, DeepSpeed
    "_orig_mod.",  # torch.compile
    "_fsdp_wrapped_module.",
    "_checkpoint_wrapped_module.",
    "base_model.model.",  # PEFT
    "pretrained_model.",  # TRL's models with a value head
    "policy.",
    "actor.",
    "student.",
)
_INNER = re.compile(
    r"(?<=\.)(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module|base_layer|modules_to_save\.default)\."
)
_MODELS = ("model.language_model.", "language_model.", "model.", "transformer.", "gpt_neox.", "text_model.")
_BUFFERS = re.compile(
    r"(?:rotary_emb\.(?:inv_freq|cos_cached|sin_cached|original_inv_freq)|attn\.(?:masked_)?bias|position_ids)$"
)
_TRAINING_ONLY = re.compile(
    r"(?:^|\.)(?:v_head|value_head|critic_head|critic|score|classifier|reward_head|rm_head|q_head"
    r"|regression_head|ref_model|reference_model|mtp|visual|vision_tower|vision_model|multi_modal_projector"
    r"|audio_tower)\."
)
_ADAPTER = re.compile(
    r"\.lora_(?:A|B|magnitude_vector)\b|lora_embedding_|\.ia3_|\.vera_|\.oft_r\b|prompt_embeddings"
)
_QUANTISED = re.compile(
    r"\.(?:absmax|quant_map|nested_absmax|nested_quant_map|SCB|qweight|qzeros|scales|g_idx|weight_scale(?:_inv)?"
    r"|weight_packed)$|\.quant_state\."
)


def candidates(name: str) -> Iterator[str]:
    """What a tensor may be called in the base, likeliest first: no wrappers, another inner model."""
    bare = _unwrapped(name)
    yield bare
    for prefix in _MODELS:
        if bare.startswith(prefix):
            rest = bare.removeprefix(prefix)
            yield rest
            yield f"model.{rest}"
            yield f"transformer.{rest}"
    yield f"model.{bare}"
    yield f"transformer.{bare}"


def _unwrapped(name: str) -> str:
    found = next((prefix for prefix in _WRAPPERS if name.startswith(prefix)), None)
    while found is not None:
        name = name.removeprefix(found)
        found = next((prefix for prefix in _WRAPPERS if name.startswith(prefix)), None)
    return _INNER.sub("", name)


def is_buffer(name: str) -> bool:
    """Computed from the config, so never taken."""
    return _BUFFERS.search(name) is not None


def is_training_only(name: str) -> bool:
    """A value head, a reference model, the eyes of a multimodal wrapper: nothing that writes text."""
    return _TRAINING_ONLY.search(name) is not None


def is_adapter(name: str) -> bool:
    """A matrix that a method beside the weights keeps."""
    return _ADAPTER.search(name) is not None


def is_quantised(name: str) -> bool:
    """Part of a quantised form of a weight."""
    return _QUANTISED.search(name) is not None
