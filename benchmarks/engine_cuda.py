"""Measure the transformers engine on a CUDA device, and what a worker does between submissions.

    python benchmarks/engine_cuda.py --model FOLDER --questions gsm8k/test.jsonl --out result.json

Texts are held against plain padded `generate` in fp32, where a batch does not change them. Speed is
measured in bf16: plain `generate` over the first rows sorted by length, at several batch sizes; ours over
all rows by real worker processes, with empty and with filled caches, and warm. Useful tokens are those
up to the end of an answer.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import os
import platform
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from posttrain.core.engine import NumericPlan, Prompt, PromptSettings, Turn
from posttrain.core.errors import DeviceBusy
from posttrain.core.paths import RunPaths
from posttrain.core.scores import Item
from posttrain.core.specs import GenerationSettings, TaskSpec
from posttrain.engines.client import EngineWorker
from posttrain.engines.transformers_engine import TransformersEngine
from posttrain.grading.exam import Exam
from posttrain.grading.workers import Assessor
from posttrain.infra.processes import Spawner

SETTINGS = PromptSettings(style="chat", template="{question}", answer_template="{answer}")
PLAIN_ITEMS = 660
CONTEXT = """
import ctypes, os, torch
ones = torch.ones(64, 64, device="cuda", dtype=torch.bfloat16)
print("up", float((ones @ ones).sum()), flush=True)
input()
driver, space, process = ctypes.CDLL("libcuda.so.1"), (ctypes.c_char * 256)(), os.getpid()
names = ("cuCheckpointProcessLock", "cuCheckpointProcessCheckpoint")
print("given back", [getattr(driver, name)(process, space) for name in names], flush=True)
input()
names = ("cuCheckpointProcessRestore", "cuCheckpointProcessUnlock")
print("restored", [getattr(driver, name)(process, space) for name in names], flush=True)
print("up", float((ones @ ones).sum()), flush=True)
"""
HOLDER = """
import sys, time, torch
free, total = torch.cuda.mem_get_info()
held = torch.empty(int(free - 0.1 * total), dtype=torch.uint8, device="cuda")
print("held", flush=True)
sys.stdin.read()
"""


def main() -> None:
    options = _options()
    results: dict[str, Any] = {"machine": _machine()}
    for model in options.model:
        results[str(model)] = {}
        bench = Bench(options, model, results[str(model)])
        for name in options.parts:
            begun = time.monotonic()
            getattr(bench, name)()
            print(f"[{model.name} {name}: {time.monotonic() - begun:.1f} s]", flush=True)
            print(json.dumps({name: results[str(model)].get(name)}), flush=True)
            if options.out:
                options.out.write_text(json.dumps(results, indent=2) + "\n", "utf-8")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True, nargs="+", help="folders of models")
    parser.add_argument("--questions", type=Path, required=True, help="GSM8K rows, JSON lines")
    parser.add_argument("--tokens", type=int, default=256, help="most tokens of an answer")
    parser.add_argument("--rows", type=int, default=1536)
    parser.add_argument("--share", type=float, default=0.25)
    parser.add_argument("--plain", type=int, nargs="*", default=[128, 256, 512, 660])
    parser.add_argument("--sweep", type=int, nargs="*", default=[256, 512, 1024])
    parser.add_argument("--out", type=Path)
    parts = [
        "memory",
        "texts",
        "starts",
        "submissions",
        "busy",
        "plain",
        "sweep",
        "profile",
        "attention",
        "opening",
    ]
    parser.add_argument("--parts", nargs="*", default=parts)
    return parser.parse_args()


class Bench:
    """One measurement a method; each leaves its numbers in `result`."""

    def __init__(self, options: argparse.Namespace, model: Path, result: dict[str, Any]) -> None:
        self.options, self.model, self.result = options, model, result
        lines = options.questions.read_text("utf-8").splitlines()
        self.rows = [json.loads(line) for line in lines]
        self.prompts = [
            Prompt(id=str(number), turns=(Turn(role="user", content=row["question"]),))
            for number, row in enumerate(self.rows)
        ]
        self.plan = NumericPlan(
            engine="transformers", device="cuda", rows=options.rows, memory_share=options.share
        )
        self.generation = GenerationSettings(max_new_tokens=options.tokens)
        self.scratch = Path(tempfile.mkdtemp())

    # --- what a process takes of the card

    def memory(self) -> None:
        """Of an idle context, and whether a driver gives it back when asked to."""
        before = _used()
        with subprocess.Popen(
            [sys.executable, "-c", CONTEXT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdin
            assert process.stdout
            said, used = [], []
            for _ in range(3):
                said.append(process.stdout.readline().strip())
                used.append(_used() - before)
                try:
                    process.stdin.write("\n")
                    process.stdin.flush()
                except BrokenPipeError:
                    break
        self.result["memory"] = {"used_mb": used, "said": said}

    # --- the same texts

    def texts(self) -> None:
        """fp32, 64 items: equal to plain generate, and where not, how near the choice was."""
        few, tokens = self.prompts[:64], 128
        plan = self.plan.model_copy(update={"dtype": "float32"})
        engine = TransformersEngine()
        engine.open(str(self.model), plan)
        mine = engine.generate(
            few, prompt=SETTINGS, generation=GenerationSettings(max_new_tokens=tokens), progress=_ignore
        )
        model, tokenizer = self._plain_model("float32")
        theirs = _plain_texts(model, tokenizer, self._chats(few), tokens=tokens, rows=64)
        near = []
        for number, (one, other) in enumerate(zip(mine, theirs, strict=True)):
            if one.text != other:
                near.append(_gap(model, tokenizer, self._chats(few)[number], one.text, other))
        self.result["texts"] = {"equal": len(few) - len(near), "of": len(few), "differing": near}
        self.result["warnings"] = list(engine.warnings)
        _drop(engine)
        del model
        torch.cuda.empty_cache()

    # --- ours, by worker processes

    def starts(self) -> None:
        """All items: a new process with empty caches, one with filled caches, and that one again."""
        self._checkpoints(2)
        with tempfile.TemporaryDirectory() as caches:
            environment = {"TRITON_CACHE_DIR": f"{caches}/triton", "CUDA_CACHE_PATH": f"{caches}/cuda"}
            cold = self._graded([self.folders[0]], environment)
            filled = self._graded([*self.folders, *self.folders], environment)
        texts = [row.pop("texts") for row in (*cold, *filled)]
        self.result["starts"] = {
            "cold": cold[0],
            "filled": filled[0],
            "warm": filled[1:],
            "warm_equals_fresh": texts[0] == texts[1] == texts[3] and texts[2] == texts[4],
            "checkpoints_differ": texts[1] != texts[2],
        }

    def _checkpoints(self, count: int) -> None:
        """Copies of the base with a little noise, as a training would leave them."""
        self.folders = [self.scratch / "submissions" / str(number) for number in range(1, count + 1)]
        weights = {}
        for path in sorted(self.model.glob("*.safetensors")):
            weights |= load_file(path)
        for number, folder in enumerate(self.folders):
            folder.mkdir(parents=True, exist_ok=True)
            torch.manual_seed(number)
            noisy = {
                name: (tensor.float() * (1 + 0.002 * torch.randn(tensor.shape))).to(torch.bfloat16)
                for name, tensor in weights.items()
            }
            save_file(noisy, folder / "model.safetensors", metadata={"format": "pt"})
            (folder / "config.json").write_bytes((self.model / "config.json").read_bytes())

    def _graded(self, folders: Sequence[Path], environment: dict[str, str]) -> list[dict[str, Any]]:
        """One worker process; what each folder took, the first with the start."""
        rows = []
        log = self.scratch / "engine.log"
        begun = time.monotonic()
        path = {"PATH": os.environ["PATH"], "HOME": str(self.scratch)}
        with (
            Spawner() as spawner,
            EngineWorker(
                spawner, log=log, gpu="0", environment={**path, **_paths(), **environment}
            ) as worker,
        ):
            worker.open(self.model, self.plan)
            opened = time.monotonic() - begun
            for folder in folders:
                started = time.monotonic()
                worker.load(folder)
                loaded = time.monotonic() - started
                made = worker.generate(self.prompts, prompt=SETTINGS, generation=self.generation)
                tokens = sum(output.tokens for output in made.outputs)
                rows.append(
                    {
                        "open_s": round(opened, 2),
                        "load_s": round(loaded, 2),
                        "generate_s": round(made.generation_s, 2),
                        "total_s": round(time.monotonic() - begun, 2),
                        "tokens": tokens,
                        "useful_tokens_per_s": round(tokens / made.generation_s),
                        "warnings": made.warnings,
                        "texts": [output.text for output in made.outputs],
                    }
                )
                begun, opened = time.monotonic(), 0.0
        return rows

    # --- between submissions

    def submissions(self) -> None:
        """Three gradings in a row, sleep, a killed worker, an end: seconds, and the card's memory."""
        self._checkpoints(3)
        used = {"before": _used()}
        heard: list[str] = []
        assessor = Assessor(
            self._exam(), paths=RunPaths(self.scratch / "run"), timeout_s=300.0,
            kill_mode="best-effort", shelf=self.scratch / "submissions", tell=heard.append,
        )  # fmt: skip
        taken = []
        with assessor:
            for number, folder in enumerate(self.folders):
                graded = assessor.assess(folder, label=str(number), gpu="0")
                taken.append(
                    {
                        "total_s": round(graded.total_s, 2),
                        "generate_s": round(graded.generation_s, 2),
                        "score": graded.evaluation.score.value,
                    }
                )
            used["awake"] = _used()
            assessor.rest()
            time.sleep(1.0)
            used["asleep"] = _used()
            woken = assessor.assess(self.folders[0], label="woken", gpu="0")
            killer = threading.Timer(1.5, _kill_worker)
            killer.start()
            again = assessor.assess(self.folders[1], label="killed", gpu="0", on_fault=heard.append)
        time.sleep(1.0)
        used["after"] = _used()
        self.result["submissions"] = {
            "taken": taken,
            "woken_s": round(woken.total_s, 2),
            "woken_equal": woken.evaluation.score.value == taken[0]["score"],
            "killed_s": round(again.total_s, 2),
            "killed_equal": again.evaluation.score.value == taken[1]["score"],
            "heard": heard,
            "used_mb": used,
        }

    def _exam(self) -> Exam:
        items = tuple(
            Item(id=str(number), fields={**row, "answer": row["answer"].split("####")[-1].strip()})
            for number, row in enumerate(self.rows)
        )
        task = TaskSpec(id="gsm8k", folder=self.scratch, title="GSM8K", evaluator="numeric")
        return Exam(
            split="test", task=task, items=items, prompts=tuple(self.prompts), prompt=SETTINGS,
            generation=self.generation, base=self.model, numeric=self.plan,
        )  # fmt: skip

    def busy(self) -> None:
        """Another process holds the card: busy, with a hint, after waiting; then, freed, a grade."""
        exam = self._exam()
        exam = replace(exam, items=exam.items[:16], prompts=exam.prompts[:16])
        with subprocess.Popen(
            [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as holder:
            assert holder.stdin
            assert holder.stdout
            holder.stdout.readline()
            begun = time.monotonic()
            with Assessor(
                exam, paths=RunPaths(self.scratch / "busy"), timeout_s=300.0, kill_mode="best-effort",
                shelf=self.scratch / "submissions",
            ) as assessor:  # fmt: skip
                said = "graded"
                try:
                    assessor.assess(None, label="1", gpu="0")
                except DeviceBusy as error:
                    said = f"{error}; {error.hint}"
                waited = time.monotonic() - begun
                holder.stdin.close()
                holder.wait()
                graded = assessor.assess(None, label="2", gpu="0")
        self.result["busy"] = {
            "said": said,
            "after_s": round(waited, 1),
            "freed": graded.evaluation.score.n,
        }

    # --- what others do

    def plain(self) -> None:
        """Padded generate over the first rows, sorted by length."""
        model, tokenizer = self._plain_model("bfloat16")
        chats = sorted(self._chats(self.prompts[:PLAIN_ITEMS]), key=len)
        _plain_tokens(model, tokenizer, chats[:16], tokens=8, rows=16)
        rates = self.result.setdefault("plain", {})
        for rows in self.options.plain:
            torch.cuda.synchronize()
            begun = time.monotonic()
            answers = _plain_tokens(model, tokenizer, chats, tokens=self.options.tokens, rows=rows)
            torch.cuda.synchronize()
            seconds = time.monotonic() - begun
            rates[rows] = round(sum(len(row) for row in answers) / seconds)
            print(f"plain {rows}: {rates[rows]} tokens/s, {seconds:.1f} s", flush=True)
        del model
        torch.cuda.empty_cache()

    def sweep(self) -> None:
        """Ours at other numbers of rows, in this process."""
        found = {}
        for rows in self.options.sweep:
            engine = TransformersEngine()
            engine.open(str(self.model), self.plan.model_copy(update={"rows": rows}))
            times = []
            for _ in range(2):
                begun = time.monotonic()
                outputs = engine.generate(
                    self.prompts, prompt=SETTINGS, generation=self.generation, progress=_ignore
                )
                times.append(time.monotonic() - begun)
            tokens = sum(output.tokens for output in outputs)
            found[rows] = {"first_s": round(times[0], 2), "tokens_per_s": round(tokens / times[1])}
            _drop(engine)
        self.result["sweep"] = found

    # --- where the time goes

    def profile(self) -> None:
        """Steps alone, kernels by time, the floor by bandwidth, and a whole call from above."""
        from posttrain.engines.batching import Asked

        engine = TransformersEngine()
        engine.open(str(self.model), self.plan)
        begun = time.monotonic()
        rendered = engine.render(self.prompts, SETTINGS)
        render_s = time.monotonic() - begun
        engine.generate(self.prompts, prompt=SETTINGS, generation=self.generation, progress=_ignore)
        activities = [torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=activities) as whole:
            begun = time.monotonic()
            engine.generate(self.prompts, prompt=SETTINGS, generation=self.generation, progress=_ignore)
            whole_s = time.monotonic() - begun
        static = engine._static._kept[1]
        rows = static.arena.rows
        asked = [Asked(k, text.token_ids, 1, random.Random(0)) for k, text in enumerate(rendered[:rows])]
        prompts = [list(one.tokens) for one in asked] + [[1]] * (rows - len(asked))
        with torch.inference_mode():
            prefill_ms = _ms(lambda: static.prefill(prompts[:64], range(64)), 5)
            context = 280
            static.arena.positions.fill_(context)
            step_ms = _ms(lambda: (static.arena.positions.fill_(context), static.step(rows)), 50)
            eager_ms = _ms(lambda: (static.arena.positions.fill_(context), static._advance(rows)), 5)
            static.arena.positions.fill_(context)
            with torch.profiler.profile(activities=activities) as one:
                static._advance(rows)
                torch.cuda.synchronize()
        big = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
        other = torch.empty_like(big)
        bandwidth = 2 * big.numel() / (_ms(lambda: other.copy_(big), 20) / 1000)
        decoder = engine._decoder
        weights = sum(p.numel() * p.element_size() for p in engine._model.parameters())
        per_token = 2 * len(decoder.layers) * decoder.kv_heads * decoder.head_dim * 2
        floor = (weights + rows * context * per_token) / bandwidth * 1000
        self.result["profile"] = {
            "rows": rows,
            "context": context,
            "step_ms": round(step_ms, 3),
            "step_without_graph_ms": round(eager_ms, 3),
            "step_floor_ms": round(floor, 3),
            "copy_GB_per_s": round(bandwidth / 1e9),
            "prefill_64_ms": round(prefill_ms, 2),
            "render_s": round(render_s, 2),
            "one_step": _kernels(one, 14),
            "whole_call_s": round(whole_s, 2),
            "whole_call_device_s": round(
                sum(e.self_device_time_total for e in whole.key_averages()) / 1e6, 2
            ),
            "whole_call": _kernels(whole, 14),
        }

    def attention(self) -> None:
        """The attention kernel of one layer alone, with other tiles: microseconds, and of the bandwidth."""
        from posttrain.engines import kernels

        heads, kv, dim = self._heads()
        rows, context, capacity = self.options.rows, 280, 576
        kind = {"dtype": torch.bfloat16, "device": "cuda"}
        mixed = torch.randn(rows, heads + 2 * kv, dim, **kind)
        stored = [torch.randn(16, rows, kv, capacity, dim, **kind) for _ in range(2)]
        out = torch.empty(rows, heads * dim, **kind)
        positions = torch.full((rows,), context, dtype=torch.int32, device="cuda")
        group = heads // kv
        found = {}
        for block, warps, stages in itertools.product((32, 64, 128), (1, 2, 4, 8), (1, 2, 3, 4)):

            def launch(layer: int, block: int = block, warps: int = warps, stages: int = stages) -> None:
                kernels._attend[(rows, kv)](
                    mixed, stored[0][layer], stored[1][layer], out, positions, dim**-0.5, capacity,
                    HEADS=heads, KV=kv, GROUP=group, QUERIES=16, DIM=dim, WIDTH=dim, BLOCK=block,
                    PRECISION="tf32", num_warps=warps, num_stages=stages,
                )  # fmt: skip

            try:
                launch(0)
            except Exception as error:  # noqa: BLE001 - a tile that does not fit is a row of the table
                found[f"{block}/{warps}/{stages}"] = str(error)[:60]
                continue
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for layer in range(16):
                    launch(layer)
            found[f"{block}/{warps}/{stages}"] = round(1000 * _ms(graph.replay, 20) / 16, 1)
        read = 2 * rows * (context + 1) * kv * dim * 2
        best = sorted((v, k) for k, v in found.items() if isinstance(v, float))[:8]
        self.result["attention"] = {
            "block/warps/stages: us": {k: v for v, k in best},
            "now": found.get(f"{kernels._KEYS}/{kernels._WARPS}/{kernels._STAGES}"),
            "bytes": read,
            "best_GB_per_s": round(read / best[0][0] / 1000),
        }

    def opening(self) -> None:
        """What the start of a process is made of."""
        code = (
            "import time; t=[time.time()]; import torch; t.append(time.time()); torch.zeros(1,device='cuda');"
            "t.append(time.time()); from transformers import AutoModelForCausalLM, AutoTokenizer;"
            "t.append(time.time()); import posttrain.engines.transformers_engine; t.append(time.time());"
            "import triton; t.append(time.time()); print([round(b-a,2) for a,b in zip(t,t[1:])])"
        )
        said = [
            subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False).stdout
            for _ in range(2)
        ]
        self.result["opening"] = said

    # --- helpers

    def _heads(self) -> tuple[int, int, int]:
        config = json.loads((self.model / "config.json").read_text("utf-8"))
        heads = config["num_attention_heads"]
        dim = config.get("head_dim") or config["hidden_size"] // heads
        return heads, config["num_key_value_heads"], dim

    def _chats(self, prompts: Sequence[Prompt]) -> list[str]:
        tokenizer = AutoTokenizer.from_pretrained(self.model)
        return [
            tokenizer.apply_chat_template(
                [turn.model_dump() for turn in prompt.turns], tokenize=False, add_generation_prompt=True
            )
            for prompt in prompts
        ]

    def _plain_model(self, dtype: str) -> tuple[Any, Any]:
        folder = self.model
        tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
        tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).to("cuda").eval()
        return model, tokenizer


def _plain_tokens(
    model: Any, tokenizer: Any, chats: Sequence[str], *, tokens: int, rows: int
) -> list[list[int]]:
    ends = model.generation_config.eos_token_id
    ends = set(ends if isinstance(ends, list) else [ends]) | {tokenizer.eos_token_id}
    answers = []
    for start in range(0, len(chats), rows):
        batch = tokenizer(
            list(chats[start : start + rows]), return_tensors="pt", padding=True, add_special_tokens=False
        ).to("cuda")
        with torch.inference_mode():
            whole = model.generate(
                **batch, max_new_tokens=tokens, do_sample=False, repetition_penalty=1.0,
                temperature=None, top_p=None, top_k=None,
            )  # fmt: skip
        for row in whole[:, batch["input_ids"].shape[1] :].tolist():
            answers.append(row[: next((k for k, token in enumerate(row) if token in ends), len(row))])
    return answers


def _plain_texts(model: Any, tokenizer: Any, chats: Sequence[str], *, tokens: int, rows: int) -> list[str]:
    answers = _plain_tokens(model, tokenizer, chats, tokens=tokens, rows=rows)
    return [tokenizer.decode(row, skip_special_tokens=True) for row in answers]


def _gap(model: Any, tokenizer: Any, chat: str, mine: str, theirs: str) -> dict[str, Any]:
    """How far the two likeliest tokens were apart where two texts part."""
    one = tokenizer(chat + mine, add_special_tokens=False)["input_ids"]
    other = tokenizer(chat + theirs, add_special_tokens=False)["input_ids"]
    same = next(
        (k for k, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )
    with torch.inference_mode():
        logits = model(torch.tensor([one[:same]], device="cuda")).logits[0, -1]
    best = logits.topk(2).values.tolist()
    return {"at": same, "two_best_logits": best, "apart": best[0] - best[1]}


def _kernels(profiled: Any, count: int) -> dict[str, str]:
    events = sorted(profiled.key_averages(), key=lambda event: -event.self_device_time_total)
    return {
        event.key[:60]: f"{event.self_device_time_total / 1000:.2f} ms in {event.count}"
        for event in events[:count]
    }


def _ms(work: Callable[[], Any], times: int) -> float:
    work()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    begin.record()
    for _ in range(times):
        work()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) / times


def _used() -> int:
    """Megabytes of the card that are in use, by anybody."""
    line = subprocess.run(
        ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    return int(line.split()[0])


def _kill_worker() -> None:
    """SIGKILL to the engine workers that descend from this process."""
    import psutil

    for child in psutil.Process().children(recursive=True):
        if child.cmdline()[1:4] == ["-P", "-m", "posttrain.engines.worker"]:
            child.send_signal(signal.SIGKILL)


def _paths() -> dict[str, str]:
    return {name: os.environ[name] for name in ("PYTHONPATH", "LD_LIBRARY_PATH") if name in os.environ}


def _machine() -> dict[str, Any]:
    return {
        "card": torch.cuda.get_device_name(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "processors": len(os.sched_getaffinity(0)),
    }


def _drop(engine: TransformersEngine) -> None:
    """Free its memory; `sleep` would take the whole process off the device."""
    engine._model = engine._target = engine._decoder = engine._static = None
    gc.collect()
    torch.cuda.empty_cache()


def _ignore(done: int, total: int) -> None:  # noqa: ARG001
    return None


if __name__ == "__main__":
    main()
