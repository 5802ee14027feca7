from __future__ import annotations

import pytest

from posttrain.infra.models import Model, check_unchanged

TEMPLATE_SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"


def test_the_default_model_is_whole_and_in_the_dtype_it_was_published_in(default_model: Model) -> None:
    check_unchanged(default_model)
    facts = default_model.facts()
    assert (facts.dtype, facts.parameters, facts.tied) == ("bfloat16", 134_515_008, True)
    assert facts.has_chat_template
    assert facts.max_length == 8192


def test_its_template_is_the_instruct_models_own_with_the_system_text_it_injects(
    default_model: Model,
) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(default_model.folder)
    turns = [{"role": "user", "content": "Hi"}]
    text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    assert text == (
        f"<|im_start|>system\n{TEMPLATE_SYSTEM}<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_its_tokenizer_splits_digits_as_the_original_does(default_model: Model) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(default_model.folder)
    assert tokenizer.tokenize("12345") == list("12345")
    # byte-level splitting alone would give Ċ Ċ 1 here, and other ids than the model was trained on
    assert tokenizer.tokenize("a\n\n1")[1:] == ["ĊĊ", "1"]
    assert (tokenizer.eos_token, tokenizer.pad_token_id) == ("<|im_end|>", 2)


@pytest.mark.slow
def test_it_answers_in_its_own_words_and_stops(default_model: Model) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(default_model.folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(default_model.folder)
    turns = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(
        turns, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    output = model.generate(**prompt, max_new_tokens=40, do_sample=False)
    answer = tokenizer.decode(output[0, prompt["input_ids"].shape[1] :])
    assert "Paris" in answer
    assert answer.endswith("<|im_end|>")
