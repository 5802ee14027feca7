"""The vLLM engine in a worker of its own, wherever a vLLM can be imported: minutes, not for every run."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pytest

from posttrain.core.engine import NumericPlan
from posttrain.core.errors import Unloadable, WorkerDied
from posttrain.core.scores import Output
from posttrain.core.specs import GenerationSettings
from posttrain.engines.client import EngineWorker
from posttrain.engines.plan import choose_engine
from posttrain.infra.gpus import list_gpus
from posttrain.infra.processes import Spawner
from posttrain.infra.sandbox import View

from .conftest import CHAT, QUESTIONS, ask

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(find_spec("vllm") is None, reason="no vLLM is installed"),
]

GPUS = [gpu.id for gpu in list_gpus()]
PLAN = NumericPlan(
    engine="vllm", device="cuda" if GPUS else "cpu", dtype="float32", attention="vllm", threads=2, rows=4
)


@pytest.fixture(scope="module")
def make(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A random model whose heads are large enough for vLLM's kernels, with the tiny one's tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig

    def made(seed: int, *, tied: bool = True) -> Path:
        folder = tmp_path_factory.mktemp("models") / f"seed{seed}"
        config = LlamaConfig(
            vocab_size=259, hidden_size=128, intermediate_size=192, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, head_dim=32, max_position_embeddings=512,
            tie_word_embeddings=tied, bos_token_id=256, eos_token_id=256, pad_token_id=256,
        )  # fmt: skip
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config)
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.2)
        model.save_pretrained(folder)
        AutoTokenizer.from_pretrained(str(tiny)).save_pretrained(folder)
        return folder

    return made


@pytest.fixture(scope="module")
def base(make: Callable[..., Path]) -> Path:
    return make(0)


@pytest.fixture
def worker(spawner: Spawner, tmp_path: Path, base: Path) -> Iterator[EngineWorker]:
    with new_worker(spawner, tmp_path / "engine.log") as running:
        running.open(base, PLAN)
        yield running


def new_worker(spawner: Spawner, log: Path, **options: Any) -> EngineWorker:
    return EngineWorker(spawner, log=log, gpu=GPUS[0] if GPUS else None, **options)


def outputs_of(worker: EngineWorker, **generation: Any) -> tuple[Output, ...]:
    settings = GenerationSettings(**{"max_new_tokens": 16, **generation})
    return worker.generate(ask(QUESTIONS), prompt=CHAT, generation=settings).outputs


def transformers_outputs(spawner: Spawner, log: Path, base: Path, folder: Path | None) -> tuple[Output, ...]:
    plan = NumericPlan(engine="transformers", dtype="float32", threads=1, rows=4)
    with EngineWorker(spawner, log=log, gpu=None) as other:
        other.open(base, plan)
        other.load(folder)
        return outputs_of(other)


def test_a_vllm_that_is_installed_can_be_chosen() -> None:
    assert choose_engine("vllm", gpus=GPUS).engine == "vllm"


def test_texts_are_those_of_transformers_for_base_and_submissions_in_turn(
    worker: EngineWorker, spawner: Spawner, tmp_path: Path, base: Path, make: Callable[..., Path]
) -> None:
    one, two = make(1), make(2)
    for folder in (one, two, None, one):
        worker.load(folder)
        wanted = transformers_outputs(spawner, tmp_path / "other.log", base, folder)
        assert outputs_of(worker) == wanted


def test_a_head_of_its_own_is_used_and_the_next_tied_one_is_tied_again(
    worker: EngineWorker, spawner: Spawner, tmp_path: Path, base: Path, make: Callable[..., Path]
) -> None:
    tied, untied = make(1), make(3, tied=False)
    for folder in (tied, untied, tied):
        report = worker.load(folder)
        assert ("differs from the embedding" in " ".join(report.repairs)) == (folder is untied)
        assert outputs_of(worker) == transformers_outputs(spawner, tmp_path / "other.log", base, folder)


def test_a_refused_checkpoint_answers_nothing_and_harms_nothing(
    worker: EngineWorker, base: Path, make: Callable[..., Path], tmp_path: Path
) -> None:
    worker.load(make(1))
    before = outputs_of(worker)
    (tmp_path / "empty").mkdir()
    with pytest.raises(Unloadable):
        worker.load(tmp_path / "empty")
    worker.load(make(1))
    assert outputs_of(worker) == before
    assert worker.load(base).copy_of_base


def test_sampling_gives_each_item_its_own_draws_and_the_same_again(worker: EngineWorker) -> None:
    worker.load(None)
    sampled = {"temperature": 1.0, "top_p": 0.9, "top_k": 50, "samples": 2}
    first = outputs_of(worker, **sampled)
    assert outputs_of(worker, **sampled) == first
    assert first[0] != first[1]


def test_a_stop_text_ends_the_answer_and_is_not_part_of_it(worker: EngineWorker) -> None:
    worker.load(None)
    whole = outputs_of(worker)
    number, text = next((i, o.text) for i, o in enumerate(whole) if len(o.text.strip()) > 4)
    stop = text[2:4]
    stopped = outputs_of(worker, stop=(stop,))
    assert stopped[number].text == text[: text.index(stop)]
    assert stopped[number].cut is False


def test_it_works_without_network_and_with_nothing_but_the_models_in_sight(
    spawner: Spawner, tmp_path: Path, base: Path
) -> None:
    if os.getuid() != 0:
        pytest.skip("another user id takes root")
    for path in (*base.parents[:3], base, *base.iterdir()):
        path.chmod(path.stat().st_mode | 0o055)
    view = View.allow_list(home=Path("/home/grader"), uid=60321, network="none", readable=[base])
    with new_worker(spawner, tmp_path / "engine.log", view=view) as shut_in:
        shut_in.open(base, PLAN)
        shut_in.load(None)
        assert any(output.text for output in outputs_of(shut_in))


def test_a_killed_worker_leaves_no_process_and_a_new_one_answers_the_same(
    spawner: Spawner, tmp_path: Path, base: Path
) -> None:
    before = {process.pid for process in psutil.process_iter()}
    with new_worker(spawner, tmp_path / "engine.log") as first:
        first.open(base, PLAN)
        first.load(None)
        wanted = outputs_of(first)
        mine = [p for p in psutil.process_iter(["cmdline"]) if p.pid not in before and _is_engine(p)]
        assert mine
        os.kill(max(mine, key=lambda process: process.memory_info().rss).pid, signal.SIGKILL)
        with pytest.raises(WorkerDied):
            outputs_of(first)
    time.sleep(1.0)
    assert not [p for p in psutil.process_iter(["cmdline"]) if p.pid not in before and _is_engine(p)]
    with new_worker(spawner, tmp_path / "engine.log") as second:
        second.open(base, PLAN)
        second.load(None)
        assert outputs_of(second) == wanted


def _is_engine(process: psutil.Process) -> bool:
    line = " ".join(process.info["cmdline"] or ())
    return "posttrain.engines.worker vllm" in line or "VLLM::" in line
