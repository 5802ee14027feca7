"""Fine-tunes as honest people make and save them: by several trainers, in several forms."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from posttrain.training.examples import Example
from posttrain.training.models import pad_token
from posttrain.training.sft import Sft, SftSettings, save_checkpoint

Row = tuple[str, str]
"""Question and answer."""


@dataclass
class Workshop:
    """A base, rows to learn from, and how long."""

    base: Path
    rows: Sequence[Row]
    steps: int = 3
    batch: int = 8

    def model(self, dtype: torch.dtype = torch.float32) -> Any:
        return AutoModelForCausalLM.from_pretrained(str(self.base), dtype=dtype)

    @cached_property
    def tokenizer(self) -> Any:
        return AutoTokenizer.from_pretrained(str(self.base))

    def examples(self, rows: Sequence[Row]) -> tuple[Example, ...]:
        tokenizer = self.tokenizer
        made = []
        for question, answer in rows:
            prompt = tokenizer.apply_chat_template(
                [{"role": "user", "content": question}], add_generation_prompt=True, tokenize=False
            )
            ids = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in (prompt, answer))
            made.append(Example(*(tuple(found) for found in ids)))
        return tuple(made)

    def train(self, model: Any, *, seed: int = 0, rate: float = 2e-4, steps: int | None = None) -> Any:
        count = steps or self.steps
        sft = Sft(model, settings=SftSettings(learning_rate=rate, warmup=0.0), pad=pad_token(self.tokenizer))
        source = random.Random(seed)
        for step in range(count):
            sft.step(self.examples(source.sample(list(self.rows), self.batch)), progress=step / count)
        return model

    def tuned(self, **settings: Any) -> Any:
        return self.train(self.model(), **settings)


Make = Callable[[Workshop, Path], None]


def _sft(seed: int = 0, rate: float = 2e-4, dtype: torch.dtype = torch.bfloat16) -> Make:
    def make(shop: Workshop, target: Path) -> None:
        save_checkpoint(shop.tuned(seed=seed, rate=rate), shop.tokenizer, target, dtype=dtype)

    return make


def _saved(dtype: torch.dtype, **options: Any) -> Make:
    return lambda shop, target: shop.tuned().to(dtype).save_pretrained(target, **options)


def _in_bf16(shop: Workshop, target: Path) -> None:
    model = shop.model(torch.bfloat16)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-5)
    for example in shop.examples(shop.rows[:3]):
        ids = torch.tensor([[*example.prompt, *example.answer]])
        model(input_ids=ids, labels=ids).loss.backward()
        optimiser.step()
        optimiser.zero_grad()
    model.save_pretrained(target)


def _frozen(keep: str) -> Make:
    def make(shop: Workshop, target: Path) -> None:
        model = shop.model()
        before = {name: value.detach().clone() for name, value in model.state_dict().items()}
        shop.train(model)
        with torch.no_grad():
            for name, value in model.state_dict().items():
                if keep not in name and name != "lm_head.weight":
                    value.copy_(before[name])
        model.save_pretrained(target)

    return make


def _lora(shop: Workshop, target: Path, **options: Any) -> None:
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    settings = LoraConfig(r=8, task_type="CAUSAL_LM", **{"target_modules": ["q_proj", "v_proj"], **options})
    model = get_peft_model(shop.model(), settings)
    optimiser = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=1e-3)
    for example in shop.examples(shop.rows[:3]):
        ids = torch.tensor([[*example.prompt, *example.answer]])
        model(input_ids=ids, labels=ids).loss.backward()
        optimiser.step()
        optimiser.zero_grad()
    model.merge_and_unload().to(torch.bfloat16).save_pretrained(target)


def _plain(rename: Callable[[str], str] = str, *, head: bool = False) -> Make:
    def make(shop: Workshop, target: Path) -> None:
        target.mkdir()
        values = {name: value.clone() for name, value in shop.tuned().state_dict().items()}
        if not head:
            values.pop("lm_head.weight", None)
        save_file({rename(name): value for name, value in values.items()}, target / "model.safetensors")

    return make


def _resized(more: int) -> Make:
    def make(shop: Workshop, target: Path) -> None:
        model = shop.tuned()
        model.resize_token_embeddings(model.config.vocab_size + more)
        model.to(torch.bfloat16).save_pretrained(target)

    return make


def _soup(shop: Workshop, target: Path) -> None:
    one, two = shop.tuned(seed=1), shop.tuned(seed=2)
    with torch.no_grad():
        for value, other in zip(one.parameters(), two.parameters(), strict=True):
            value.add_(other).mul_(0.5)
    one.to(torch.bfloat16).save_pretrained(target)


def _trl(shop: Workshop, target: Path) -> None:
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    tokenizer = shop.tokenizer
    rows = [{"prompt": question, "completion": answer} for question, answer in shop.rows[:8]]
    arguments = SFTConfig(
        output_dir=str(target.parent / "trl"), max_steps=1, per_device_train_batch_size=2, use_cpu=True,
        bf16=False, report_to="none", disable_tqdm=True, save_strategy="no", learning_rate=1e-4,
    )  # fmt: skip
    trainer = SFTTrainer(
        model=shop.model(), args=arguments, train_dataset=Dataset.from_list(rows), processing_class=tokenizer
    )
    trainer.train()
    trainer.save_model(str(target))


def _grpo(shop: Workshop, target: Path) -> None:
    from posttrain.training.budget import Budget
    from posttrain.training.grpo import GrpoSettings, Watch, train_epoch
    from posttrain.training.rewards import random_reward

    watch = Watch(Budget(600.0), reserve_s=0.0, log=lambda _: None)
    train_epoch(
        shop.base,
        target,
        rows=[{"prompt": question, "gold": answer} for question, answer in shop.rows[:8]],
        reward=random_reward(1),
        settings=GrpoSettings(
            max_steps=1, max_completion_length=4, learning_rate=1e-5, gradient_accumulation_steps=2
        ),
        stop_token_ids=(2,),
        seed=1,
        scratch=target.parent / "scratch",
        watch=watch,
    )


def _with_leftovers(shop: Workshop, target: Path) -> None:
    _saved(torch.bfloat16)(shop, target)
    for name in ("optimizer.pt", "rng_state.pth", "training_args.bin", "trainer_state.json"):
        (target / name).write_bytes(b"x")


def _own_head(shop: Workshop, target: Path) -> None:
    model = shop.tuned()
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach() * 1.01)
    model.config.tie_word_embeddings = False
    model.save_pretrained(target)


HONEST: dict[str, Make] = {
    "SFT in bf16": _sft(),
    "SFT, another seed": _sft(seed=1),
    "SFT, small rate": _sft(rate=1e-5),
    "SFT in fp32": _sft(dtype=torch.float32),
    "SFT in fp16": _sft(dtype=torch.float16),
    "weights trained in bf16": _in_bf16,
    "GRPO of TRL": _grpo,
    "SFT of TRL": _trl,
    "LoRA merged": _lora,
    "LoRA on all projections merged": lambda s, t: _lora(s, t, target_modules="all-linear"),
    "DoRA merged": lambda s, t: _lora(s, t, use_dora=True),
    "transformers, sharded": _saved(torch.bfloat16, max_shard_size="200KB"),
    "transformers, fp32 sharded": _saved(torch.float32, max_shard_size="300KB"),
    "plain safetensors": _plain(),
    "plain safetensors with the tied head": _plain(head=True),
    "plain safetensors of a wrapped model": _plain(lambda name: f"module.{name}"),
    "vocabulary padded": _resized(61),
    "a token added": _resized(1),
    "last layer only": _frozen("layers.1."),
    "embeddings only": _frozen("embed_tokens"),
    "mean of two runs": _soup,
    "checkpoint folder of a trainer": _with_leftovers,
    "head of its own": _own_head,
}


def mixed(base: Path, other: Path, target: Path, share: float, *, noise: float = 0.0) -> Path:
    """base + share * (other - base), with noise of that many times the step's length on each tensor."""
    target.mkdir()
    one, two = load_file(base / "model.safetensors"), load_file(other / "model.safetensors")
    source = torch.Generator().manual_seed(5)
    values = {}
    for name, value in deepcopy(one).items():
        step = share * (two[name].float() - value.float())
        scale = noise * step.pow(2).mean().sqrt()
        blurred = step + scale * torch.randn(step.shape, generator=source)
        values[name] = (value.float() + blurred).to(value.dtype)
    save_file(values, target / "model.safetensors", metadata={"format": "pt"})
    return target
