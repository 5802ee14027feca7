"""Which engine, on which device, with which numbers: decided once for base and submissions alike."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Literal

import psutil

from posttrain.core.engine import NumericPlan
from posttrain.core.errors import MissingExtra
from posttrain.engines.vllm_settings import installed_build, require_build
from posttrain.infra.model_folder import ModelFacts

Wanted = Literal["auto", "transformers", "vllm", "scripted"]

_MODULES = {
    "train": ("torch", "transformers", "safetensors"),
    "math": ("math_verify",),
    "sweep": ("optuna",),
}
"""What must be importable where an extra is needed."""
_LIBRARIES = {
    "transformers": ("torch", "transformers", "tokenizers", "safetensors"),
    "vllm": ("torch", "transformers", "tokenizers", "safetensors"),
    "scripted": (),
}
_MOST_LANES = 4
"""Each lane reads all the weights at each step; more lanes than this fight for the memory bus."""
_MOST_THREADS = 16
_CPU_ROWS = 32
_GPU_ROWS = 1536
"""At most: what keys and values of so many rows take is weighed against the memory share by the engine."""
_VLLM_ROWS = 256
_TOKENS_A_ROW = 1024


@dataclass(frozen=True)
class EngineChoice:
    """An engine that can be used here."""

    engine: Literal["transformers", "vllm", "scripted"]
    gpus: tuple[str, ...] = ()
    """Ids that grading may use; empty: the CPU."""


def choose_engine(wanted: Wanted, *, gpus: Sequence[str], needs: Sequence[str] = ()) -> EngineChoice:
    """The engine for `wanted`; `needs` are extras that the task asks for.

    `auto` is transformers, also beside an installed vLLM: on small models it was the faster one by far
    (docs/measurements.md), and what decides the numbers then does not hang on what else is installed.

    Raises MissingExtra or UsageError for what cannot be had. Nothing is imported to find out.
    """
    require_extras(needs, needed_for="grading this task")
    if wanted == "scripted":
        return EngineChoice("scripted")
    if wanted == "vllm":
        require_build(installed_build(), gpus=gpus)
        return EngineChoice("vllm", tuple(gpus))
    _require("train", "the engine transformers")
    return EngineChoice("transformers", tuple(gpus))


def require_extras(extras: Sequence[str], *, needed_for: str) -> None:
    """MissingExtra for the first that is not installed. Nothing is imported to find out."""
    for extra in extras:
        _require(extra, needed_for)


def choose_numeric(
    choice: EngineChoice, *, model: ModelFacts, memory_share: float, seed: int = 0
) -> NumericPlan:
    """The numeric plan for a base model, from what the machine has in total, not from what is free."""
    if choice.engine == "scripted":
        return NumericPlan(engine="scripted", memory_share=memory_share, seed=seed)
    if choice.engine == "vllm":
        return _vllm_numeric(choice, memory_share=memory_share, seed=seed)
    if choice.gpus:
        return NumericPlan(
            engine="transformers", device="cuda", rows=_GPU_ROWS, memory_share=memory_share, seed=seed
        )
    threads = min(_MOST_THREADS, len(os.sched_getaffinity(0)))
    lanes = min(_MOST_LANES, threads)
    return NumericPlan(
        engine="transformers",
        device="cpu",
        threads=threads - threads % lanes,
        lanes=lanes,
        rows=_rows(model, memory_bytes=int(memory_share * psutil.virtual_memory().total), lanes=lanes),
        memory_share=memory_share,
        seed=seed,
    )


def _vllm_numeric(choice: EngineChoice, *, memory_share: float, seed: int) -> NumericPlan:
    """Rows are vLLM's sequences at a time; how attention is computed is vLLM's choice for the device."""
    threads = min(_MOST_THREADS, len(os.sched_getaffinity(0)))
    return NumericPlan(
        engine="vllm",
        device="cuda" if choice.gpus else "cpu",
        attention="vllm",
        threads=1 if choice.gpus else threads,
        rows=_VLLM_ROWS if choice.gpus else _CPU_ROWS,
        memory_share=memory_share,
        seed=seed,
    )


def library_versions(engine: str) -> dict[str, str]:
    """Versions of the libraries that decide an engine's numbers."""
    found = {name: _version(name) for name in _LIBRARIES[engine]}
    build = installed_build() if engine == "vllm" else None
    return found if build is None else {build.distribution: build.version, **found}


def _rows(model: ModelFacts, *, memory_bytes: int, lanes: int) -> int:
    """Rows a lane whose keys and values fit beside the weights; a power of two, at least 4.

    A layer has about 12 hidden² parameters and keeps 4 hidden bytes a token without grouped heads;
    half of that is assumed.
    """
    hidden = model.hidden_size or 1024
    row_bytes = _TOKENS_A_ROW * model.parameters // (6 * hidden)
    free = memory_bytes - 2 * model.parameters
    fitting = max(4, free // (lanes * max(1, row_bytes)))
    return min(_CPU_ROWS, 1 << (fitting.bit_length() - 1))


def _require(extra: str, needed_for: str) -> None:
    if any(find_spec(module) is None for module in _MODULES.get(extra, ())):
        raise MissingExtra(extra, needed_for)


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
