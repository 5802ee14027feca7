"""The base as transformers reads it, for every engine that computes with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

from posttrain.core.engine import BaseFacts, NumericPlan


def base_tokenizer(base: str) -> Any:
    """The tokenizer of the folder `base`; nothing of the folder is executed, nothing is fetched."""
    return AutoTokenizer.from_pretrained(base, trust_remote_code=False, local_files_only=True)


def base_model(base: str, numeric: NumericPlan, *, attention: str | None = None) -> Any:
    """The model of the folder `base` on the processor, in the plan's precision, not for training."""
    model = AutoModelForCausalLM.from_pretrained(
        base,
        dtype=getattr(torch, numeric.dtype),
        attn_implementation=attention,
        trust_remote_code=False,
        local_files_only=True,
        use_safetensors=True,
    )
    return model.eval().requires_grad_(False)


def context_of(model: Any) -> int | None:
    """The length of the model's context in tokens, where its config tells it."""
    length: int | None = getattr(model.config, "max_position_embeddings", None)
    return length


def base_facts(
    tokenizer: Any, model: Any, *, stop_token_ids: tuple[int, ...], versions: Mapping[str, str] | None = None
) -> BaseFacts:
    """What an engine reports of the base; `versions` are libraries beside torch and transformers."""
    template = tokenizer.get_chat_template() if tokenizer.chat_template else None
    return BaseFacts(
        has_chat_template=template is not None,
        stop_token_ids=stop_token_ids,
        max_length=context_of(model),
        parameters=model.num_parameters(),
        versions={**(versions or {}), "torch": torch.__version__, "transformers": transformers.__version__},
    )
