"""The engine's own loop writes what transformers writes, however rows are batched."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from posttrain.core.engine import NumericPlan, Prompt
from posttrain.core.errors import InfrastructureError, Unloadable
from posttrain.core.scores import Output
from posttrain.core.specs import GenerationSettings
from posttrain.testing.tiny import fine_tuned

from .conftest import CHAT, QUESTIONS, ask

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

PLAN = NumericPlan(engine="transformers", dtype="float32", threads=1, lanes=1, rows=3)


def engine_on(folder: Path, **plan: Any):
    from posttrain.engines.transformers_engine import TransformersEngine

    engine = TransformersEngine()
    engine.open(str(folder), PLAN.model_copy(update=plan))
    return engine


def outputs_of(engine: Any, prompts: Sequence[Prompt], **generation: Any) -> list[Output]:
    settings = GenerationSettings(**{"max_new_tokens": 24, **generation})
    return engine.generate(prompts, prompt=CHAT, generation=settings, progress=lambda done, total: None)


def plain_texts(folder: Path, questions: Sequence[str], **options: Any) -> list[str]:
    """One prompt at a time through transformers' own generate."""
    model = transformers.AutoModelForCausalLM.from_pretrained(str(folder), dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder))
    ends = [0, tokenizer.convert_tokens_to_ids("<|im_end|>"), tokenizer.eos_token_id]
    texts = []
    for question in questions:
        ids = tokenizer.apply_chat_template(
            [{"role": "user", "content": question}],
            add_generation_prompt=True, return_tensors="pt", return_dict=True,
        )  # fmt: skip
        settings = {"max_new_tokens": 24, "do_sample": False, "eos_token_id": ends[1:], "pad_token_id": 0}
        whole = model.generate(**ids, **{**settings, **options})
        texts.append(tokenizer.decode(whole[0, ids["input_ids"].shape[1] :], skip_special_tokens=True))
    return texts


@pytest.mark.parametrize("tied", [True, False])
def test_texts_equal_those_of_transformers(make_tiny: Callable[..., Path], tied: bool) -> None:
    folder = make_tiny(dtype="F32", tied=tied)
    texts = [output.text for output in outputs_of(engine_on(folder), ask(QUESTIONS))]
    assert texts == plain_texts(folder, QUESTIONS)
    assert len(set(texts)) > len(texts) // 2


@pytest.mark.parametrize("plan", [{"rows": 1}, {"rows": 64}, {"rows": 2, "lanes": 2, "threads": 2}])
def test_batching_changes_no_text_in_fp32(tiny: Path, plan: dict) -> None:
    prompts = ask(QUESTIONS)
    assert outputs_of(engine_on(tiny, **plan), prompts) == outputs_of(engine_on(tiny), prompts)


def test_a_repetition_penalty_works_as_in_transformers(tiny: Path) -> None:
    texts = [o.text for o in outputs_of(engine_on(tiny), ask(QUESTIONS), repetition_penalty=1.3)]
    assert texts == plain_texts(tiny, QUESTIONS, repetition_penalty=1.3)


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "mistral", "gpt2", "gemma2"])
def test_other_architectures_give_the_texts_of_transformers(family: str, tiny: Path, tmp_path: Path) -> None:
    sizes = {
        "vocab_size": 259, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512,
    }  # fmt: skip
    if family == "gpt2":
        sizes = {"vocab_size": 259, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 512}
    special = {"sliding_window": None} if family == "mistral" else {}
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(
        family, **sizes, **special, bos_token_id=256, eos_token_id=256, pad_token_id=256
    )
    model = transformers.AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(tmp_path)
    # the tokenizer as it is: a config that says qwen2 would make transformers exchange it
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(tiny))
    engine = engine_on(tmp_path_with(tokenizer, tmp_path))
    reference = plain_texts(tmp_path, QUESTIONS)
    assert [output.text for output in outputs_of(engine, ask(QUESTIONS))] == reference


def tmp_path_with(tokenizer: Any, folder: Path) -> Path:
    tokenizer.save_pretrained(folder)
    return folder


def test_sampling_gives_each_item_its_own_draws_whatever_the_batch(tiny: Path) -> None:
    prompts = ask(QUESTIONS)
    sampled = {"temperature": 1.0, "top_p": 0.9, "top_k": 50, "samples": 2}
    together = outputs_of(engine_on(tiny), prompts, **sampled)
    assert outputs_of(engine_on(tiny, rows=1), prompts, **sampled) == together
    alone = outputs_of(engine_on(tiny), [prompts[3]], **sampled)
    assert alone == together[6:8]
    assert alone[0] != alone[1]
    assert outputs_of(engine_on(tiny, seed=1), prompts, **sampled) != together


def test_a_stop_text_ends_the_answer_and_is_not_part_of_it(tiny: Path) -> None:
    prompts = ask(QUESTIONS)
    whole = outputs_of(engine_on(tiny), prompts)
    number, text = next((i, o.text) for i, o in enumerate(whole) if len(o.text.strip()) > 4)
    stop = text[2:4]
    stopped = outputs_of(engine_on(tiny), prompts, stop=(stop,))
    assert stopped[number].text == text[: text.index(stop)]
    assert stopped[number].cut is False
    assert stopped[number].tokens < whole[number].tokens


def test_the_length_limit_is_told_from_an_end(tiny: Path) -> None:
    outputs = outputs_of(engine_on(tiny), ask(QUESTIONS), max_new_tokens=3)
    assert all(output.tokens == 3 for output in outputs if output.cut)
    assert any(output.cut for output in outputs)


def test_prompts_that_fill_the_context_are_not_answered_and_said(tiny: Path) -> None:
    engine = engine_on(tiny)
    outputs = outputs_of(engine, ask(["x" * 5000, "1"]), max_new_tokens=8)
    assert outputs[0] == Output(text="", tokens=0, cut=True)
    assert outputs[1].tokens > 0
    assert "1 prompts fill the context" in engine.warnings[0]


def test_progress_counts_every_answer_once(tiny: Path) -> None:
    seen: list[tuple[int, int]] = []
    engine_on(tiny, lanes=2, threads=2).generate(
        ask(QUESTIONS),
        prompt=CHAT,
        generation=GenerationSettings(max_new_tokens=4),
        progress=lambda done, total: seen.append((done, total)),
    )
    assert seen == [(n + 1, len(QUESTIONS)) for n in range(len(QUESTIONS))]


def test_a_submission_answers_as_itself_and_the_base_as_before_afterwards(tiny: Path, tmp_path: Path) -> None:
    tuned = fine_tuned(tiny, tmp_path / "tuned", scale=0.3, dtype="F32")
    engine, prompts = engine_on(tiny), ask(QUESTIONS)
    base = outputs_of(engine, prompts)
    engine.load(str(tuned))
    assert [output.text for output in outputs_of(engine, prompts)] == plain_texts(tuned, QUESTIONS)
    engine.load(None)
    assert outputs_of(engine, prompts) == base


def test_loading_in_place_gives_the_numbers_of_a_fresh_start(tiny: Path, tmp_path: Path) -> None:
    tuned = fine_tuned(tiny, tmp_path / "tuned", scale=0.3, dtype="BF16")
    warm = engine_on(tiny, dtype="bfloat16")
    warm.load(str(tuned))
    prompts = ask(QUESTIONS)
    assert outputs_of(warm, prompts) == outputs_of(engine_on(tuned, dtype="bfloat16"), prompts)


def test_twenty_checkpoints_in_any_order_get_what_each_gets_alone(tiny: Path, tmp_path: Path) -> None:
    prompts = ask(QUESTIONS[:4])
    folders = [
        fine_tuned(tiny, tmp_path / str(number), seed=number, scale=0.3, dtype="BF16") for number in range(20)
    ]
    warm = engine_on(tiny, dtype="bfloat16")
    for number in random.Random(3).sample(range(20), 20):
        warm.load(str(folders[number]))
        fresh = engine_on(tiny, dtype="bfloat16")
        fresh.load(str(folders[number]))
        settings = {"max_new_tokens": 8}
        assert outputs_of(warm, prompts, **settings) == outputs_of(fresh, prompts, **settings)


def test_a_buffer_or_a_matrix_that_is_not_the_base_s_any_more_is_noticed(tiny: Path) -> None:
    engine = engine_on(tiny)
    engine._model.model.rotary_emb.inv_freq.mul_(1.5)
    with pytest.raises(InfrastructureError, match="buffer"):
        engine.load(None)
    engine = engine_on(tiny)
    projection = engine._model.model.layers[0].self_attn.q_proj
    projection.weight.data = projection.weight.data.clone()
    with pytest.raises(InfrastructureError, match="no longer what is computed with"):
        engine.load(None)


def test_an_engine_that_slept_answers_as_before(tiny: Path, tmp_path: Path) -> None:
    tuned = str(fine_tuned(tiny, tmp_path / "tuned", scale=0.3, dtype="F32"))
    engine, prompts = engine_on(tiny), ask(QUESTIONS[:3])
    engine.load(tuned)
    before = outputs_of(engine, prompts)
    engine.sleep()
    with pytest.raises(InfrastructureError, match="no checkpoint is loaded"):
        outputs_of(engine, prompts)
    engine.load(tuned)
    assert outputs_of(engine, prompts) == before


def test_a_checkpoint_that_failed_half_way_is_never_asked(tiny: Path, tmp_path: Path) -> None:
    broken = fine_tuned(tiny, tmp_path / "nan", scale=float("nan"), dtype="F32")
    engine, prompts = engine_on(tiny), ask(QUESTIONS[:2])
    base = outputs_of(engine, prompts)
    with pytest.raises(Unloadable, match="not finite"):
        engine.load(str(broken))
    with pytest.raises(InfrastructureError, match="no checkpoint is loaded"):
        outputs_of(engine, prompts)
    engine.load(None)
    assert outputs_of(engine, prompts) == base


def test_facts_name_template_stops_context_and_libraries(tiny: Path) -> None:
    from posttrain.engines.transformers_engine import TransformersEngine

    facts = TransformersEngine().open(str(tiny), PLAN)
    assert facts.has_chat_template
    assert facts.stop_token_ids
    assert facts.max_length is not None
    assert facts.versions["torch"] == torch.__version__
