"""Check the transformers engine on a CUDA device against plain padded `generate`, and time both.

    python benchmarks/engine_cuda.py --model FOLDER --questions gsm8k/test.jsonl --out result.json

Texts are compared in fp32, where a batch does not change them; speed is measured in bf16 over all rows.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

from posttrain.core.engine import NumericPlan, Prompt, PromptSettings, Turn
from posttrain.core.specs import GenerationSettings
from posttrain.engines.transformers_engine import TransformersEngine

SETTINGS = PromptSettings(style="chat", template="{question}", answer_template="{answer}")


def questions(path: Path, count: int) -> list[Prompt]:
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()[:count]]
    turns = [(Turn(role="user", content=row["question"]),) for row in rows]
    return [Prompt(id=str(number), turns=turn) for number, turn in enumerate(turns)]


def ours(model: Path, prompts: list[Prompt], *, dtype: str, tokens: int, rows: int) -> dict[str, Any]:
    engine = TransformersEngine()
    begun = time.monotonic()
    engine.open(str(model), NumericPlan(engine="transformers", device="cuda", dtype=dtype, rows=rows))
    engine.load(None)
    opened = time.monotonic() - begun
    settings = GenerationSettings(max_new_tokens=tokens)
    begun = time.monotonic()
    outputs = engine.generate(
        prompts, prompt=SETTINGS, generation=settings, progress=lambda _done, _total: None
    )
    seconds = time.monotonic() - begun
    written = sum(output.tokens for output in outputs)
    return {
        "open_s": round(opened, 2),
        "generate_s": round(seconds, 2),
        "useful_tokens_per_s": round(written / seconds),
        "texts": [output.text for output in outputs],
    }


def plain(folder: Path, prompts: list[Prompt], *, dtype: str, tokens: int, rows: int) -> dict[str, Any]:
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).to("cuda").eval()
    texts, written = [], 0
    chats = [[turn.model_dump() for turn in prompt.turns] for prompt in prompts]
    torch.cuda.synchronize()
    begun = time.monotonic()
    for start in range(0, len(chats), rows):
        told = [
            tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
            for chat in chats[start : start + rows]
        ]
        batch = tokenizer(told, return_tensors="pt", padding=True, add_special_tokens=False).to("cuda")
        with torch.inference_mode():
            ids = model.generate(**batch, max_new_tokens=tokens, do_sample=False)
        for row in ids[:, batch["input_ids"].shape[1] :].tolist():
            end = row.index(tokenizer.eos_token_id) if tokenizer.eos_token_id in row else len(row)
            written += end
            texts.append(tokenizer.decode(row[:end], skip_special_tokens=True))
    seconds = time.monotonic() - begun
    return {
        "generate_s": round(seconds, 2),
        "useful_tokens_per_s": round(written / seconds),
        "texts": texts,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--questions", type=Path, required=True)
    parser.add_argument("--count", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    prompts = questions(options.questions, options.count)
    result: dict[str, Any] = {
        "card": torch.cuda.get_device_name(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    few, size = prompts[:64], {"tokens": options.tokens, "rows": options.rows}
    mine = ours(options.model, few, dtype="float32", **size)
    theirs = plain(options.model, few, dtype="float32", **size)
    pairs = zip(mine["texts"], theirs["texts"], strict=True)
    result["fp32_equal_texts"] = f"{sum(a.strip() == b.strip() for a, b in pairs)} of {len(few)}"
    for name, measure in (("ours", ours), ("plain", plain)):
        timed = measure(options.model, prompts, dtype="bfloat16", **size)
        result[f"bf16_{name}"] = {key: value for key, value in timed.items() if key != "texts"}
    print(json.dumps(result, indent=2))
    if options.out:
        options.out.write_text(json.dumps(result, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
