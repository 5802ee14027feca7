"""Measure the transformers engine on a CPU against plain padded `generate`.

    python benchmarks/engine_cpu.py --model FOLDER --questions gsm8k/test.jsonl --out result.json

Both write the same prompts with the same decoding, each in a process of its own with the same number of
threads. Useful tokens are those up to the end of an answer; what a padded batch writes after a row has
ended does not count. Runs alternate, so that a machine that slows down slows both.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

PLAIN_ROWS = (16, 32, 64)


def main() -> None:
    options = _options()
    if options.worker:
        _work(options)
        return
    job = _job(options)
    result = {"machine": _machine()}
    if options.mixed:
        result["bf16_mixed_lengths"] = _speed(_mixed(job), options)
    else:
        result |= {"fp32": _texts(job, options), "bf16": _speed(job, options)}
    text = json.dumps(result, indent=2)
    print(text)
    if options.out:
        Path(options.out).write_text(text + "\n", "utf-8")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="folder of the model")
    parser.add_argument("--questions", help="JSON lines with a field `question`")
    parser.add_argument("--count", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=128, help="most tokens of an answer")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rows", type=int, default=32, help="rows of one lane of ours")
    parser.add_argument("--mixed", action="store_true", help="answers of very different lengths instead")
    parser.add_argument("--skip-fp32", action="store_true")
    parser.add_argument("--out")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    return parser.parse_args()


def _job(options: argparse.Namespace) -> dict[str, Any]:
    lines = Path(options.questions).read_text("utf-8").splitlines()[: options.count]
    return {
        "model": options.model,
        "questions": [json.loads(line)["question"] for line in lines],
        "tokens": options.tokens,
        "threads": options.threads,
    }


def _mixed(job: dict[str, Any]) -> dict[str, Any]:
    """Every second question is short and has a short answer; the others may be answered at length."""
    questions = [
        f"What is {number} + {number + 3}? Reply with the number only." if number % 2 else question
        for number, question in enumerate(job["questions"])
    ]
    return {**job, "questions": questions, "tokens": 2 * job["tokens"]}


def _texts(job: dict[str, Any], options: argparse.Namespace) -> dict[str, Any] | None:
    """fp32: are the texts the same, and is ours not slower?"""
    if options.skip_fp32:
        return None
    plain = _run({**job, "way": "plain", "dtype": "float32", "rows": 64})
    ours = _run({**job, "way": "ours", "dtype": "float32", "rows": options.rows})
    differing = [
        {"row": row, "plain": theirs, "ours": mine, "first_difference": _first_difference(theirs, mine)}
        for row, (theirs, mine) in enumerate(zip(plain["texts"], ours["texts"], strict=True))
        if theirs != mine
    ]
    return {
        "equal": len(job["questions"]) - len(differing),
        "of": len(job["questions"]),
        "differing": differing,
        "plain_seconds": plain["seconds"],
        "ours_seconds": ours["seconds"],
        "plain_tokens_per_s": plain["tokens"] / plain["seconds"],
        "ours_tokens_per_s": ours["tokens"] / ours["seconds"],
    }


def _first_difference(one: str, other: str) -> int:
    return next(
        (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )


def _speed(job: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """bf16: useful tokens a second; the best plain size of one pass, then ours against it, alternating."""
    plain = {f"plain_{rows}": {"way": "plain", "rows": rows} for rows in PLAIN_ROWS}
    first = {name: _rate(job, way) for name, way in plain.items()}
    best = max(first, key=lambda name: first[name][0])
    ways = {best: plain[best], "ours": {"way": "ours", "rows": options.rows}}
    measured: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for _ in range(options.runs):
        for name, way in ways.items():
            measured[name].append(_rate(job, way))
    rates = {name: [rate for rate, _ in values] for name, values in measured.items()}
    medians = {name: statistics.median(values) for name, values in rates.items()}
    return {
        "first_pass": {name: rate for name, (rate, _) in first.items()},
        "tokens_per_s": medians,
        "all_runs": rates,
        "ours_over_best_plain": medians["ours"] / medians[best],
        "processor_ms_per_token": {
            name: statistics.median(cost for _, cost in values) for name, values in measured.items()
        },
    }


def _rate(job: dict[str, Any], way: dict[str, Any]) -> tuple[float, float]:
    """Useful tokens a second, and processor milliseconds a token."""
    done = _run({**job, **way, "dtype": "bfloat16"})
    return done["tokens"] / done["seconds"], 1000 * done["processor_seconds"] / done["tokens"]


def _run(job: dict[str, Any]) -> dict[str, Any]:
    """Do one job in a fresh process."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.json"
        path.write_text(json.dumps(job), "utf-8")
        environment = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1"}
        subprocess.run(
            [sys.executable, __file__, "--model", job["model"], "--worker", str(path)],
            check=True, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        return json.loads((Path(folder) / "done.json").read_text("utf-8"))


def _work(options: argparse.Namespace) -> None:
    path = Path(options.worker)
    job = json.loads(path.read_text("utf-8"))
    done = _ours(job) if job["way"] == "ours" else _plain(job)
    (path.parent / "done.json").write_text(json.dumps(done), "utf-8")


def _plain(job: dict[str, Any]) -> dict[str, Any]:
    """What one would write by hand: left-padded batches in the order of the rows."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(job["threads"])
    model = AutoModelForCausalLM.from_pretrained(job["model"], dtype=getattr(torch, job["dtype"])).eval()
    tokenizer = AutoTokenizer.from_pretrained(job["model"], padding_side="left")
    texts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], add_generation_prompt=True, tokenize=False
        )
        for question in job["questions"]
    ]
    begun, spent = time.perf_counter(), _processor_seconds()
    answers: list[list[int]] = []
    for start in range(0, len(texts), job["rows"]):
        batch = tokenizer(
            texts[start : start + job["rows"]], return_tensors="pt", padding=True, add_special_tokens=False
        )
        with torch.inference_mode():
            whole = model.generate(**batch, max_new_tokens=job["tokens"], do_sample=False)
        answers += whole[:, batch["input_ids"].shape[1] :].tolist()
    seconds = time.perf_counter() - begun
    kept = [_useful(row, tokenizer.eos_token_id) for row in answers]
    return {
        "texts": [tokenizer.decode(row, skip_special_tokens=True) for row in kept],
        "tokens": sum(len(row) for row in kept),
        "seconds": seconds,
        "processor_seconds": _processor_seconds() - spent,
    }


def _processor_seconds() -> float:
    """Of this process and of its lanes: what other programs on the machine hardly change."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _useful(row: list[int], end: int) -> list[int]:
    return row[: row.index(end)] if end in row else row


def _ours(job: dict[str, Any]) -> dict[str, Any]:
    from posttrain.core.engine import NumericPlan, Prompt, PromptSettings, Turn
    from posttrain.core.specs import GenerationSettings
    from posttrain.engines.transformers_engine import TransformersEngine

    plan = NumericPlan(
        engine="transformers",
        dtype=job["dtype"],
        threads=job["threads"],
        lanes=min(4, job["threads"]),
        rows=job["rows"],
    )
    engine = TransformersEngine()
    engine.open(job["model"], plan)
    prompts = [
        Prompt(id=str(number), turns=(Turn(role="user", content=question),))
        for number, question in enumerate(job["questions"])
    ]
    settings = PromptSettings(style="chat", template="{question}", answer_template="{answer}")
    begun, spent = time.perf_counter(), _processor_seconds()
    outputs = engine.generate(
        prompts,
        prompt=settings,
        generation=GenerationSettings(max_new_tokens=job["tokens"]),
        progress=_ignore,
    )
    seconds = time.perf_counter() - begun
    return {
        "texts": [output.text for output in outputs],
        "tokens": sum(output.tokens for output in outputs),
        "seconds": seconds,
        "processor_seconds": _processor_seconds() - spent,
    }


def _ignore(done: int, total: int) -> None:  # noqa: ARG001
    return None


def _machine() -> dict[str, Any]:
    import torch
    import transformers

    return {
        "cores": len(os.sched_getaffinity(0)),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "load": os.getloadavg()[0],
    }


if __name__ == "__main__":
    main()
