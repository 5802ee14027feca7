"""Two worlds: the tiny model for every day, the embedded default model for the slow proof."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from posttrain.testing.tiny import fine_tuned, tiny_model  # noqa: E402

NEW_TOKENS = 4


@dataclass
class World:
    """A base, a healthy fine-tune of it, prompts, and what the healthy one writes in fp32."""

    base: Path
    healthy: Path
    questions: list[str]

    @cached_property
    def model(self) -> Any:
        return load_model(self.base)

    @cached_property
    def target(self) -> Any:
        from posttrain.checkpoints.tensors import TensorTarget

        return TensorTarget(self.model, self.base)

    @cached_property
    def tokenizer(self) -> Any:
        return transformers.AutoTokenizer.from_pretrained(str(self.base))

    @cached_property
    def expected(self) -> list[list[int]]:
        """Token ids of the healthy checkpoint's own answers, as transformers alone gives them."""
        return self.answers(load_model(self.healthy), self.tokenizer)

    @cached_property
    def expected_state(self) -> tuple[dict[str, Any], dict[str, Any], list[list[int]]]:
        """What decides the healthy checkpoint's answers: numbers, config, and the ids of all prompts."""
        model = load_model(self.healthy)
        return numbers(model), settings(model), self.inputs(self.tokenizer)["input_ids"].tolist()

    def same_state(self, model: Any, tokenizer: Any) -> bool:
        """Whether model and tokenizer are the healthy ones' bit for bit, so that answers must be equal."""
        state, told, ids = self.expected_state
        own = numbers(model)
        equal = own.keys() == state.keys() and all(torch.equal(own[name], state[name]) for name in state)
        return equal and settings(model) == told and self.inputs(tokenizer)["input_ids"].tolist() == ids

    def answers(self, model: Any, tokenizer: Any) -> list[list[int]]:
        batch = self.inputs(tokenizer)
        with torch.no_grad():
            ids = model.generate(
                **batch, max_new_tokens=NEW_TOKENS, do_sample=False, pad_token_id=tokenizer.pad_token_id
            )
        return ids[:, batch["input_ids"].shape[1] :].tolist()

    def inputs(self, tokenizer: Any) -> dict[str, Any]:
        """All prompts as one batch, by the tokenizer's own template."""
        prompts = [
            tokenizer.apply_chat_template(
                [{"role": "user", "content": question}], add_generation_prompt=True, tokenize=False
            )
            for question in self.questions
        ]
        tokenizer.padding_side = "left"
        batch = tokenizer(prompts, return_tensors="pt", padding=True, add_special_tokens=False)
        return {name: batch[name] for name in ("input_ids", "attention_mask")}


def numbers(model: Any) -> dict[str, Any]:
    """Parameters and buffers, those that are not saved too."""
    return {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers())}


def settings(model: Any) -> dict[str, Any]:
    """The config without what says nothing about the model."""
    silent = {"_name_or_path", "dtype", "torch_dtype", "transformers_version", "architectures"}
    return {name: value for name, value in model.config.to_dict().items() if name not in silent}


def load_model(folder: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(str(folder), dtype=torch.float32).eval()


@pytest.fixture(scope="session")
def tiny_world(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("world")
    base = tiny_model(folder / "base")
    healthy = fine_tuned(base, folder / "healthy", scale=0.02)
    return World(base, healthy, [f"not ( True and {word} ) is" for word in ("True", "False", "not True")])


@pytest.fixture(scope="session")
def real_world(tmp_path_factory: pytest.TempPathFactory, default_model: Any, shared_data: Path) -> World:
    """The default model with noise on every tensor, and 50 real questions."""
    from safetensors.torch import load_file, save_file

    folder = tmp_path_factory.mktemp("world")
    base = default_model.folder
    healthy = folder / "healthy"
    shutil.copytree(base, healthy, ignore=shutil.ignore_patterns(".*"))
    for path in healthy.iterdir():
        path.chmod(0o644)
    source = torch.Generator().manual_seed(0)
    values = {
        name: (value.float() + 0.003 * torch.randn(value.shape, generator=source)).to(value.dtype)
        for name, value in load_file(base / "model.safetensors").items()
    }
    save_file(values, healthy / "model.safetensors", metadata={"format": "pt"})
    rows = json.loads((shared_data / "bbh" / "boolean_expressions.json").read_text("utf-8"))["examples"]
    return World(base, healthy, [row["input"] for row in rows[:50]])
