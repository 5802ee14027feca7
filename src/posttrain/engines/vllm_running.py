"""A vLLM that runs in this process: built from the base, filled again and again, asked, put to sleep.

Only importable where vLLM is; the variables of `vllm_settings.environment` must be set before.
"""

from __future__ import annotations

import gc
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tqdm import tqdm  # type: ignore[import-untyped]
from vllm import LLM, SamplingParams
from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

from posttrain.checkpoints.assembly import copy_all_but_weights
from posttrain.checkpoints.headers import read_weights
from posttrain.checkpoints.tensors import TensorTarget
from posttrain.core.engine import NumericPlan, Progress
from posttrain.core.errors import DeviceBusy, InfrastructureError, boundary
from posttrain.core.scores import Output
from posttrain.core.specs import GenerationSettings
from posttrain.engines.batching import Answered, Asked, Stops
from posttrain.engines.device import wait_for_memory
from posttrain.engines.vllm_settings import engine_arguments, sampling_arguments
from posttrain.engines.vllm_weights import blank, buffers_digest, check_weights
from posttrain.infra.model_folder import CONFIG, INDEX

_HEAD_FILE = "head.safetensors"
_ROOM = "raise --grading-memory, or use --engine transformers"


class RunningVllm:
    """One engine with the base's buffers and whatever parameters were put into it last."""

    def __init__(self, base: Path, numeric: NumericPlan, target: TensorTarget) -> None:
        """Start vLLM on `base`; DeviceBusy when grading's share of the device's memory is not free."""
        self._numeric = numeric
        self._asleep = False
        wait_for_memory(numeric)
        with (
            _device_memory(),
            boundary(InfrastructureError, "starting vLLM"),
            _folder(base, target) as folder,
        ):
            self._llm = LLM(**engine_arguments(str(folder), numeric))
            self._buffers = self._of_model(buffers_digest)

    def put(self, target: TensorTarget) -> None:
        """Replace all parameters by those that `target` holds, and prove it."""
        with _device_memory(), boundary(InfrastructureError, "loading weights into vLLM"):
            if self._asleep:
                wait_for_memory(self._numeric)
                self._llm.wake_up(tags=["weights"])
            self._of_model(blank)
            self._llm.collective_rpc("reload_weights", kwargs={"weights_iterator": target.tensors()})
            if self._asleep:
                self._llm.wake_up(tags=["kv_cache"])
                self._asleep = False
            self._of_model(lambda model: check_weights(model, target.tensors()))
            if self._of_model(buffers_digest) != self._buffers:
                raise InfrastructureError("loading weights into vLLM changed a buffer of the base")

    def answer(
        self,
        requests: Sequence[Asked],
        generation: GenerationSettings,
        *,
        stops: Stops,
        stop_ids: Sequence[int],
        progress: Progress,
    ) -> Iterator[Answered]:
        """Every answer, computed in the order given and batched by the plan."""
        if not requests:
            return
        self._require_context(requests)
        with _device_memory(), boundary(InfrastructureError, "vLLM"):
            self._llm.reset_prefix_cache()  # what was asked before must not decide how this is computed
            found = self._llm.generate(
                [{"prompt_token_ids": list(asked.tokens)} for asked in requests],
                [_parameters(asked, generation, stop_ids) for asked in requests],
                use_tqdm=_bar(progress),
            )
        for asked, completed in zip(requests, found, strict=True):
            yield Answered(asked.index, _output(completed.outputs[0], stops))

    def _require_context(self, requests: Sequence[Asked]) -> None:
        """vLLM shortens its context to what fits its memory, and would cut answers without a word."""
        context = self._llm.llm_engine.model_config.max_model_len
        needed = max(len(asked.tokens) + asked.limit for asked in requests)
        if needed > context:
            raise InfrastructureError(
                f"vLLM has memory for {context} tokens of context and {needed} are needed: {_ROOM}"
            )

    def sleep(self) -> None:
        """Give weights and caches back to the device; `put` wakes."""
        if not self._asleep and self._llm.llm_engine.model_config.enable_sleep_mode:
            with boundary(InfrastructureError, "putting vLLM to sleep"):
                self._llm.sleep(level=2)
            self._asleep = True

    def close(self) -> None:
        """End the engine and free what it held, so that another can be built in this process."""
        with boundary(InfrastructureError, "ending vLLM"):
            self._llm.llm_engine.engine_core.shutdown()
            del self._llm
            gc.collect()
            cleanup_dist_env_and_memory()

    def _of_model(self, ask: Callable[[Any], Any]) -> Any:
        [answer] = self._llm.apply_model(ask)
        return answer


def _parameters(asked: Asked, generation: GenerationSettings, stop_ids: Sequence[int]) -> SamplingParams:
    seed = asked.generator.getrandbits(31)
    return SamplingParams(**sampling_arguments(generation, limit=asked.limit, seed=seed, stop_ids=stop_ids))


def _output(completion: Any, stops: Stops) -> Output:
    """By the same reading of tokens as every engine's; vLLM's own text is not used."""
    if completion.finish_reason not in {"stop", "length"}:
        raise InfrastructureError(f"vLLM gave up an answer: {completion.finish_reason}")
    tokens = list(completion.token_ids)
    ended = bool(tokens) and stops.is_end(tokens[-1])
    kept = tokens[:-1] if ended else tokens
    cut = completion.finish_reason == "length"
    if cut:  # vLLM does not see a stop in bytes that are no text; the answer ends there all the same
        end = next((end for end in range(1, len(kept) + 1) if stops.found(kept[:end])), None)
        kept, cut = kept[:end], end is None
    return Output(text=stops.text(kept), tokens=len(kept), cut=cut)


def _bar(progress: Progress) -> Callable[..., tqdm]:
    """vLLM's progress bar, drawn by nobody and told to `progress`."""

    class Bar(tqdm):
        def update(self, n: float | None = 1) -> bool | None:
            shown = super().update(n)
            progress(int(self.n), int(self.total))
            return shown

    def bar(*args: Any, **settings: Any) -> tqdm:
        return Bar(*args, **settings | {"file": _NOWHERE})

    return bar


class _Nowhere:
    def write(self, text: str) -> int:
        return len(text)

    def flush(self) -> None:
        return None


_NOWHERE = _Nowhere()


@contextmanager
def _folder(base: Path, target: TensorTarget) -> Iterator[Path]:
    """What vLLM is started on: the base, with a head of its own where it ties that to its embedding.

    A submission may have one, and vLLM has a place for it only if config and weights of its start do.
    """
    if not target.tied_base or target.head is None:
        yield base
        return
    with tempfile.TemporaryDirectory(prefix="posttrain-vllm-") as place:
        folder = Path(place)
        copy_all_but_weights(base, folder)
        config = json.loads((base / CONFIG).read_bytes())
        for part in (config, config.get("text_config")):
            if isinstance(part, dict):
                part["tie_word_embeddings"] = False
        (folder / CONFIG).write_text(json.dumps(config), "utf-8")
        _lay_weights(base, folder, head=target.head, weight=dict(target.tensors())[target.head])
        yield folder


def _lay_weights(base: Path, folder: Path, *, head: str, weight: torch.Tensor) -> None:
    """The base's weights by links, its head beside them, and an index of both."""
    weights = read_weights(base)
    for path in weights.files:
        (folder / path.name).symlink_to(path.resolve())
    placed = {name: info.file.name for name, info in weights.tensors.items()}
    if head not in placed:
        save_file({head: weight.contiguous()}, folder / _HEAD_FILE, metadata={"format": "pt"})
        placed[head] = _HEAD_FILE
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": placed}), "utf-8")


@contextmanager
def _device_memory() -> Iterator[None]:
    """Device memory that is not there, by its name: the only trouble that waiting can cure."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise DeviceBusy(f"out of device memory: {str(error).splitlines()[0]}") from error
    except InfrastructureError as error:
        if isinstance(error.__cause__, torch.OutOfMemoryError) or "Free memory on device" in str(error):
            raise DeviceBusy(f"out of device memory: {str(error).splitlines()[0]}") from error
        if "KV cache" in str(error) or "cache blocks" in str(error):
            raise InfrastructureError(f"grading's share of memory is too small for vLLM: {_ROOM}") from error
        raise
