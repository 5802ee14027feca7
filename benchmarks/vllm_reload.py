"""Whether weights put into a running vLLM answer as a vLLM that was started on them. JSON on stdout.

    python benchmarks/vllm_reload.py BASE CHECKPOINT CHECKPOINT --questions test.jsonl [--dtype float32]

One warm engine takes the checkpoints in turn, each of them twice, with the base between; each is also asked
in a fresh engine, and in vLLM alone, started on the folder without anything of ours but the prompts.
Exits 1 if an answer of the warm engine differs from one of the others. Runs where vLLM runs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from posttrain.core.engine import NumericPlan, Prompt, PromptSettings, Turn
from posttrain.core.scores import Output
from posttrain.core.specs import GenerationSettings
from posttrain.engines.client import EngineWorker
from posttrain.engines.plan import choose_engine, choose_numeric, library_versions
from posttrain.infra.gpus import list_gpus
from posttrain.infra.model_folder import read_facts
from posttrain.infra.processes import Spawner

PROMPT = PromptSettings(style="chat", template="{question}", answer_template="{answer}")


def prompts(path: Path, count: int) -> list[Prompt]:
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()[:count]]
    return [
        Prompt(id=str(number), turns=(Turn(role="user", content=row["question"]),))
        for number, row in enumerate(rows)
    ]


class Bench:
    def __init__(self, asked: argparse.Namespace, spawner: Spawner, log: Path) -> None:
        self.gpus = [gpu.id for gpu in list_gpus(visible=os.environ.get("CUDA_VISIBLE_DEVICES"))]
        choice = choose_engine("vllm", gpus=self.gpus)
        plan = choose_numeric(choice, model=read_facts(asked.base), memory_share=0.25)
        self.plan = plan.model_copy(update={"dtype": asked.dtype})
        self.generation = GenerationSettings(max_new_tokens=asked.tokens)
        self.prompts = prompts(asked.questions, asked.items)
        self.base, self.spawner, self.log = asked.base, spawner, log
        self.seconds: dict[str, list[float]] = {"first_load": [], "next_load": [], "generation": []}

    def engine(self, folders: Sequence[Path | None]) -> list[tuple[Output, ...]]:
        """What one worker answers for each folder in turn."""
        gpu = self.gpus[0] if self.gpus else None
        answers = []
        with EngineWorker(self.spawner, log=self.log, gpu=gpu) as worker:
            worker.open(self.base, self.plan)
            for number, folder in enumerate(folders):
                begun = time.monotonic()
                worker.load(folder)
                self.seconds["next_load" if number else "first_load"].append(time.monotonic() - begun)
                found = worker.generate(self.prompts, prompt=PROMPT, generation=self.generation)
                self.seconds["generation"].append(found.generation_s)
                answers.append(found.outputs)
        return answers

    def alone(self, folder: Path) -> tuple[Output, ...]:
        """What vLLM by itself answers, in a process that ends with it."""
        job = {
            "folder": str(folder),
            "plan": self.plan.model_dump(mode="json"),
            "generation": self.generation.model_dump(mode="json"),
            "prompts": [prompt.model_dump(mode="json") for prompt in self.prompts],
        }
        with self.log.open("ab") as log:
            done = subprocess.run(
                [sys.executable, __file__, "--alone"],
                input=json.dumps(job).encode(), stdout=subprocess.PIPE, stderr=log, check=True,
            )  # fmt: skip
        return tuple(Output.model_validate(row) for row in json.loads(done.stdout))


def answer_alone() -> int:
    """The program behind `Bench.alone`."""
    replies = os.dup(1)
    os.dup2(2, 1)
    from posttrain.engines import vllm_settings

    job = json.load(sys.stdin)
    plan = NumericPlan.model_validate(job["plan"])
    os.environ.update(vllm_settings.environment(plan))
    from transformers import AutoTokenizer
    from vllm import LLM, SamplingParams

    from posttrain.engines.prompting import render_turns, stop_ids

    generation = GenerationSettings.model_validate(job["generation"])
    asked = [Prompt.model_validate(row) for row in job["prompts"]]
    tokenizer = AutoTokenizer.from_pretrained(job["folder"])
    ends = stop_ids(tokenizer, None)
    rendered = [render_turns(tokenizer, prompt.turns, PROMPT).token_ids for prompt in asked]
    order = sorted(range(len(asked)), key=lambda number: -len(rendered[number]))
    settings = vllm_settings.sampling_arguments(
        generation, limit=generation.max_new_tokens, seed=0, stop_ids=ends
    )
    llm = LLM(**vllm_settings.engine_arguments(job["folder"], plan))
    found = llm.generate(
        [{"prompt_token_ids": list(rendered[number])} for number in order],
        SamplingParams(**settings),
        use_tqdm=False,
    )
    outputs = dict(zip(order, (answer.outputs[0] for answer in found), strict=True))
    rows = []
    for number in range(len(asked)):
        tokens = [token for token in outputs[number].token_ids if token not in ends]
        text = tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        cut = outputs[number].finish_reason == "length"
        rows.append({"text": text, "tokens": len(tokens), "cut": cut})
    os.write(replies, json.dumps(rows).encode())
    return 0


def equal(left: Sequence[Output], right: Sequence[Output]) -> int:
    return sum(one == other for one, other in zip(left, right, strict=True))


def main() -> int:
    if sys.argv[1:] == ["--alone"]:
        return answer_alone()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("base", type=Path)
    parser.add_argument("checkpoints", type=Path, nargs=2)
    parser.add_argument("--questions", type=Path, required=True)
    parser.add_argument("--items", type=int, default=100)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    asked = parser.parse_args()
    asked.base = asked.base.resolve()  # workers start elsewhere
    one, two = (folder.resolve() for folder in asked.checkpoints)
    log = Path(tempfile.mkdtemp(prefix="posttrain-bench-")) / "engine.log"
    with Spawner() as spawner:
        bench = Bench(asked, spawner, log)
        warm = bench.engine([one, two, None, two, one])
        fresh = [bench.engine([folder])[0] for folder in (one, two, None)]
        alone = [bench.alone(folder) for folder in (one, two, asked.base)]
    found = {
        "items": len(bench.prompts),
        "dtype": asked.dtype,
        "device": bench.plan.device,
        "versions": library_versions("vllm"),
        "warm = fresh": [equal(warm[i], fresh[k]) for i, k in enumerate((0, 1, 2, 1, 0))],
        "warm = vLLM alone": [equal(warm[i], alone[k]) for i, k in enumerate((0, 1, 2, 1, 0))],
        "first = second checkpoint": equal(warm[0], warm[1]),
        "seconds": {name: [round(value, 2) for value in took] for name, took in bench.seconds.items()},
        "log": str(log),
    }
    print(json.dumps(found))
    same = [*found["warm = fresh"], *found["warm = vLLM alone"]]
    return 0 if all(count == len(bench.prompts) for count in same) else 1


if __name__ == "__main__":
    sys.exit(main())
