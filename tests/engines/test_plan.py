"""Which engine and which numbers, decided without importing any of the heavy libraries."""

from __future__ import annotations

import subprocess
import sys

import pytest

from posttrain.core.errors import UsageError
from posttrain.engines.plan import EngineChoice, choose_engine, choose_numeric, library_versions
from posttrain.infra.model_folder import ModelFacts


def facts(parameters: int = 135_000_000, hidden: int = 576) -> ModelFacts:
    return ModelFacts(
        model_type="llama", architecture="LlamaForCausalLM", dtype="bfloat16", parameters=parameters,
        weight_bytes=2 * parameters, tied=True, hidden_size=hidden, has_chat_template=True,
    )  # fmt: skip


def test_auto_takes_transformers_on_the_gpus_there_are() -> None:
    pytest.importorskip("torch")
    assert choose_engine("auto", gpus=("0",)) == EngineChoice("transformers", ("0",))
    assert choose_engine("auto", gpus=()) == EngineChoice("transformers", ())


def test_scripted_needs_nothing_and_uses_no_gpu() -> None:
    assert choose_engine("scripted", gpus=("0",)) == EngineChoice("scripted", ())


def test_an_engine_that_is_not_there_is_a_wrong_use() -> None:
    with pytest.raises(UsageError, match="vllm"):
        choose_engine("vllm", gpus=("0",))


def test_the_plan_does_not_depend_on_what_is_free_at_the_moment() -> None:
    choice = EngineChoice("transformers")
    plans = {choose_numeric(choice, model=facts(), memory_share=0.25, seed=3) for _ in range(3)}
    assert len(plans) == 1
    plan = plans.pop()
    assert plan.seed == 3
    assert plan.threads % plan.lanes == 0


def test_a_large_model_gets_fewer_rows() -> None:
    choice = EngineChoice("transformers")
    small = choose_numeric(choice, model=facts(), memory_share=0.25)
    large = choose_numeric(choice, model=facts(30_000_000_000, 4096), memory_share=0.25)
    assert large.rows < small.rows
    assert large.rows >= 4


def test_a_gpu_plan_names_the_device() -> None:
    plan = choose_numeric(EngineChoice("transformers", ("0",)), model=facts(), memory_share=0.25)
    assert (plan.device, plan.lanes, plan.dtype) == ("cuda", 1, "bfloat16")


def test_versions_are_those_of_the_libraries_that_count() -> None:
    assert library_versions("scripted") == {}
    assert set(library_versions("transformers")) == {"torch", "transformers", "tokenizers", "safetensors"}


def test_choosing_and_asking_import_neither_torch_nor_numpy() -> None:
    code = (
        "import sys, posttrain.engines.plan, posttrain.engines.client, posttrain.engines.prompting, "
        "posttrain.engines.scripted; print(sorted({'torch', 'numpy', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
