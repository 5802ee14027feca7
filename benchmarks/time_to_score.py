"""Seconds from request to score: posttrain cold and warm beside OpenCompass and lm-eval. JSON on stdout.

    python benchmarks/time_to_score.py --model FOLDER [--batches 8,16,32,64] [--out FILE.json]

The same GSM8K items, the same chat prompt, greedy decoding, the same limit and the same batch size for all,
in two settings: 8 items of at most 32 new tokens, and 64 of at most 96. The peers are their own command
lines in the environments of `posttrain env install opencompass` and `lm_eval`. Pure generation is measured
inside them, around each call of the model's `generate`. Cold is `posttrain grade`, a new process. Warm is
a checkpoint handed to a worker that has graded another one: copied into the lab, loaded, asked and scored.

Each peer is tried with every batch size of --batches that is not more than the items, and counts with its
best; warm takes the size of the faster peer. Cold is the command line with the plan that it makes for this
machine, so only what it spends beside generation is held against a bar.
Exits 1 unless all bars hold: fixed cost warm at most 1 s, cold at most twice what importing torch and
transformers and loading the model take here and now; 8 items: warm at most a third of the faster peer in
all and a tenth beside generation; 64 items: at most 0.8 of it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import yaml

from posttrain.benchmarks.prepare import prepare_task
from posttrain.benchmarks.prompts import build_prompts, prompt_settings
from posttrain.checkpoints.snapshot import SnapshotLimits, take_snapshot
from posttrain.cli.context import open_lab
from posttrain.core.engine import NumericPlan
from posttrain.core.paths import RunPaths
from posttrain.core.scores import Item
from posttrain.core.specs import TaskSpec
from posttrain.engines.plan import choose_engine, choose_numeric
from posttrain.grading.exam import Exam
from posttrain.grading.workers import Assessor
from posttrain.infra.datasets import TaskSource
from posttrain.infra.files import write_jsonl
from posttrain.infra.model_folder import read_facts
from posttrain.infra.processes import Spawner
from posttrain.infra.tool_envs.environments import require
from posttrain.runs.isolation import best_isolation, worker_views
from posttrain.runs.lab import Lab
from posttrain.runs.plan import FROZEN_DATE

SETTINGS = ((8, 32), (64, 96))
WARM_REPEATS = 3
TEMPLATE = "{question}\nThink step by step, then give the final answer on a line of its own after '####'."
STOPWATCH = """
import atexit, importlib.abc, importlib.util, os, sys, time

_spent = [0.0]

def _timed(function):
    def generate(*args, **kwargs):
        begun = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            _spent[0] += time.perf_counter() - begun
    return generate

class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "transformers.generation.utils":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module
        def exec_module(module):
            load(module)
            module.GenerationMixin.generate = _timed(module.GenerationMixin.generate)
        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, _Finder())

@atexit.register
def _tell():
    if _spent[0]:
        with open(os.environ["STOPWATCH"], "a") as file:
            file.write(f"{_spent[0]}\\n")
"""
LOADING = """
import sys, time
begun = time.perf_counter()
import torch, transformers
model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.bfloat16)
transformers.AutoTokenizer.from_pretrained(sys.argv[1])
print(time.perf_counter() - begun)
"""


@dataclass(frozen=True)
class Timed:
    """One grading."""

    total_s: float
    generation_s: float
    copy_s: float | None = None
    """Of the total, the copy into the lab."""
    plain_copy_s: float | None = None
    """What writing the same bytes took just before without hashing or writing through."""

    @property
    def fixed_s(self) -> float:
        return self.total_s - self.generation_s


@dataclass(frozen=True)
class Setting:
    """What all are asked."""

    items: tuple[Item, ...]
    max_new_tokens: int
    batch: int
    model: Path
    scratch: Path

    @property
    def name(self) -> str:
        return f"{len(self.items)}x{self.max_new_tokens}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--batches", default="8,16,32,64")
    parser.add_argument("--only", choices=("posttrain", "peers"))
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    lab = open_lab(writable=True)
    report: dict[str, object] = {"loading_s": loading_s(arguments.model)}
    with tempfile.TemporaryDirectory(prefix="time-to-score-") as place:
        for count, limit in SETTINGS:
            setting = Setting(
                items=gsm8k(lab, count),
                max_new_tokens=limit,
                batch=count,
                model=arguments.model.absolute(),
                scratch=Path(place),
            )
            report[setting.name] = measured(setting, lab, arguments)
    failed = bars(report) if arguments.only is None else []
    report["bars_missed"] = failed
    text = json.dumps(report, indent=1)
    if arguments.out:
        arguments.out.write_text(text + "\n")
    print(text)
    return 1 if failed else 0


def measured(setting: Setting, lab: Lab, arguments: argparse.Namespace) -> dict[str, dict[str, float]]:
    """All runners in one setting."""
    told: dict[str, dict[str, float]] = {}
    if arguments.only != "posttrain":
        sizes = [int(size) for size in arguments.batches.split(",")]
        batches = [size for size in sizes if size <= len(setting.items)] or [len(setting.items)]
        for name, run in (("opencompass", opencompass), ("lm_eval", lm_eval)):
            tried = {size: run(replace(setting, batch=size), lab) for size in batches}
            best = min(tried, key=lambda size: tried[size].total_s)
            told[name] = shown(tried[best]) | {"batch": best}
            if len(tried) > 1:
                told[f"{name}_by_batch"] = {
                    str(size): round(timed.total_s, 2) for size, timed in tried.items()
                }
        faster = min((told["opencompass"], told["lm_eval"]), key=lambda each: each["total_s"])
        setting = replace(setting, batch=int(faster["batch"]))
    if arguments.only != "peers":
        told["posttrain_cold"] = shown(cold(setting, lab))
        told["posttrain_warm"] = shown(warm(setting, lab))
    return told


def shown(timed: Timed) -> dict[str, float]:
    return {name: round(value, 2) for name, value in asdict(timed).items() if value is not None} | {
        "fixed_s": round(timed.fixed_s, 2)
    }


def bars(report: Mapping[str, object]) -> list[str]:
    """What was promised and does not hold."""
    missed: list[str] = []
    loading = float(str(report["loading_s"]))

    def hold(what: str, value: float, most: float) -> None:
        if value > most:
            missed.append(f"{what}: {value:.2f} s, at most {most:.2f}")

    for count, limit in SETTINGS:
        told: dict[str, dict[str, float]] = report[f"{count}x{limit}"]  # type: ignore[assignment]
        ours, fresh = told["posttrain_warm"], told["posttrain_cold"]
        peer = min((told["opencompass"], told["lm_eval"]), key=lambda each: each["total_s"])
        hold(f"{count} items, fixed cost warm", ours["fixed_s"], 1.0)
        hold(f"{count} items, fixed cost cold", fresh["fixed_s"], 2 * loading)
        if count == SETTINGS[0][0]:
            hold(f"{count} items, warm in all", ours["total_s"], peer["total_s"] / 3)
            hold(f"{count} items, warm beside generation", ours["fixed_s"], peer["fixed_s"] / 10)
        else:
            hold(f"{count} items, warm in all", ours["total_s"], 0.8 * peer["total_s"])
    return missed


def loading_s(model: Path) -> float:
    """What any cold start has to pay: the libraries, and the model from the page cache."""
    runs = [run([sys.executable, "-c", LOADING, str(model)], cwd=Path("/")) for _ in range(2)]
    return round(min(float(text.strip().splitlines()[-1]) for text in runs), 2)


# --- the items, and ourselves


def task(setting: Setting) -> TaskSpec:
    """gsm8k with this setting's limit, as a folder of its own: the command line reads it from there."""
    folder = setting.scratch / "tasks" / f"gsm8k{setting.name}"
    (folder / "data").mkdir(parents=True, exist_ok=True)
    write_jsonl(folder / "data" / "test.jsonl", [item.fields for item in setting.items])
    manifest = {
        "title": "GSM8K, the first items",
        "evaluator": "numeric",
        "splits": {"train": None, "test": {"from": "test"}},
        "prompt": {"template": TEMPLATE},
        "generation": {"max_new_tokens": setting.max_new_tokens},
    }
    (folder / "benchmark.yaml").write_text(yaml.safe_dump(manifest))
    return TaskSpec.model_validate({**manifest, "id": folder.name, "folder": folder})


def gsm8k(lab: Lab, count: int) -> tuple[Item, ...]:
    spec = lab.tasks.load("gsm8k")
    source = TaskSource(
        task=spec.name, lab=lab.paths, sources=lab.sources, offline=lab.offline, progress=lambda _: None
    )
    with Spawner() as spawner:
        data = prepare_task(spec, lab=lab.paths, source=source, spawner=spawner, limit=count)
    return data.test


def numeric(setting: Setting) -> NumericPlan:
    """The plan of this machine, with the batch size of the comparison over all lanes together."""
    facts = read_facts(setting.model)
    plan = choose_numeric(choose_engine("auto", gpus=()), model=facts, memory_share=0.25)
    return plan.model_copy(update={"rows": max(1, setting.batch // plan.lanes)})


def cold(setting: Setting, lab: Lab) -> Timed:
    """The command line, from its start to its end."""
    spec = task(setting)
    command = [
        *(sys.executable, "-m", "posttrain", "grade", "--task", spec.id, "--json"),
        *("--model-path", str(setting.model)),
    ]
    begun = time.perf_counter()
    text = run(
        command,
        cwd=setting.scratch,
        POSTTRAIN_BENCHMARKS=str(setting.scratch / "tasks"),
        POSTTRAIN_HOME=str(lab.paths.home),
        CUDA_VISIBLE_DEVICES="",
    )
    total = time.perf_counter() - begun
    return Timed(total, float(json.loads(text)["generation_s"]))


def warm(setting: Setting, lab: Lab) -> Timed:
    """The median of some checkpoints after the first, each from its folder to its score."""
    spec, facts = task(setting), read_facts(setting.model)
    settings = prompt_settings(spec, has_chat_template=facts.has_chat_template, frozen_date=FROZEN_DATE)
    exam = Exam(
        split="test",
        task=spec,
        items=setting.items,
        prompts=tuple(build_prompts(setting.items, settings)),
        prompt=settings,
        generation=spec.generation,
        base=setting.model,
        numeric=numeric(setting),
    )
    place = setting.scratch / setting.name
    paths = RunPaths(place / "run")
    limits = SnapshotLimits.for_base(setting.model)
    times: list[Timed] = []
    with (
        Spawner() as spawner,
        Assessor(
            exam,
            paths=paths,
            timeout_s=600,
            kill_mode=spawner.kill_mode,
            views=worker_views("time-to-score", best_isolation(spawner), lab),
            shelf=paths.submissions,
        ) as assessor,
    ):
        for number in range(1, WARM_REPEATS + 2):
            begun = time.perf_counter()
            changed(setting.model, place / "workspace" / "output" / f"v{number}", number)
            plain_s = time.perf_counter() - begun
            os.sync()  # the copy into the lab is written through; it should not wait for our own preparations
            begun = time.perf_counter()
            copy = paths.submission(number)
            copy.parent.mkdir(parents=True, exist_ok=True)
            take_snapshot(place / "workspace", f"output/v{number}", copy, limits=limits)
            copy_s = time.perf_counter() - begun
            assessment = assessor.assess(copy, label=str(number))
            total_s = time.perf_counter() - begun
            times.append(Timed(total_s, assessment.generation_s, copy_s, plain_s))
            shutil.rmtree(copy)  # a run keeps the best alone, and an agent has room for few
            shutil.rmtree(place / "workspace" / "output" / f"v{number}")
    return sorted(times[1:], key=lambda timed: timed.total_s)[len(times[1:]) // 2]


def changed(model: Path, target: Path, number: int) -> None:
    """A copy of a model with one bit of its first weights changed, so that it is no copy of the base."""
    shutil.copytree(model, target)
    path = next(target.glob("*.safetensors"))
    with path.open("r+b") as file:
        (header,) = struct.unpack("<Q", file.read(8))
        place = 8 + header + 2 * number
        file.seek(place)
        first = file.read(1)[0]
        file.seek(place)
        file.write(bytes([first ^ 1]))


# --- the peers


def opencompass(setting: Setting, lab: Lab) -> Timed:
    """Its command line on a model that it loads itself, which its transformers 4 can read."""
    python = require("opencompass", lab.paths, lab.host_env, needed_for="this", field="benchmark").python
    place = fresh(setting, "opencompass")
    model = place / "model"
    for_transformers_4(setting.model, model)
    data = place / "cache" / "data" / "gsm8k"
    data.mkdir(parents=True)
    for name in ("train", "test"):
        write_jsonl(data / f"{name}.jsonl", [item.fields for item in setting.items])
    (place / "config.py").write_text(
        "from mmengine.config import read_base\n"
        "with read_base():\n"
        "    from opencompass.configs.datasets.gsm8k.gsm8k_gen_1d7fe4 import gsm8k_datasets\n"
        "from opencompass.models import HuggingFacewithChatTemplate\n"
        "datasets = [*gsm8k_datasets]\n"
        f"datasets[0]['infer_cfg']['prompt_template']['template'] = "
        f"dict(round=[dict(role='HUMAN', prompt={TEMPLATE!r})])\n"
        f"datasets[0]['infer_cfg']['inferencer']['max_out_len'] = {setting.max_new_tokens}\n"
        f"models = [dict(type=HuggingFacewithChatTemplate, abbr='m', path={str(model)!r}, "
        f"max_out_len={setting.max_new_tokens}, batch_size={setting.batch}, "
        "model_kwargs=dict(device_map='cpu', torch_dtype='torch.bfloat16'), "
        "generation_kwargs=dict(do_sample=False), run_cfg=dict(num_gpus=0))]\n"
    )
    program = python.parent / "opencompass"
    timed = peer([str(program), str(place / "config.py"), "-w", str(place / "out")], place)
    summaries = list(place.glob("out/*/summary/*.csv"))
    value = summaries[0].read_text().splitlines()[-1].split(",")[-1] if summaries else "-"
    require_number(value, "OpenCompass", place)
    return timed


def lm_eval(setting: Setting, lab: Lab) -> Timed:
    """Its command line with a task of the same items and words."""
    python = require("lm_eval", lab.paths, lab.host_env, needed_for="this", field="benchmark").python
    place = fresh(setting, "lm_eval")
    write_jsonl(place / "test.jsonl", [item.fields for item in setting.items])
    (place / "tasks").mkdir()
    definition = {
        "task": "items",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(place / "test.jsonl")}},
        "test_split": "test",
        "output_type": "generate_until",
        "doc_to_text": TEMPLATE.replace("{question}", "{{question}}"),
        "doc_to_target": "{{answer.split('####')[-1].strip()}}",
        "generation_kwargs": {"max_gen_toks": setting.max_new_tokens, "do_sample": False, "until": []},
        "filter_list": [
            {
                "name": "number",
                "filter": [
                    {"function": "regex", "regex_pattern": r"(-?[0-9.,]{2,})|(-?[0-9]+)", "group_select": -1},
                    {"function": "take_first"},
                ],
            }
        ],
        "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
    }
    (place / "tasks" / "items.yaml").write_text(yaml.safe_dump(definition))
    timed = peer(
        [
            *(str(python.parent / "lm_eval"), "run", "--model", "hf", "--device", "cpu"),
            *("--model_args", f"pretrained={setting.model},dtype=bfloat16"),
            *("--tasks", "items", "--include_path", str(place / "tasks"), "--apply_chat_template"),
            *("--batch_size", str(setting.batch), "--output_path", str(place / "out")),
        ],
        place,
    )
    results = list(place.glob("out/**/results_*.json"))
    told = json.loads(results[0].read_text())["results"]["items"] if results else {}
    require_number(str(told.get("exact_match,number", "-")), "lm-eval", place)
    return timed


def fresh(setting: Setting, name: str) -> Path:
    place = setting.scratch / f"{name}-{setting.name}-{setting.batch}"
    place.mkdir(parents=True)
    return place


def peer(command: Sequence[str], place: Path) -> Timed:
    """A command line from start to end, with the seconds it spent in `generate`."""
    watch = place / "stopwatch"
    watch.mkdir()
    (watch / "sitecustomize.py").write_text(STOPWATCH)
    begun = time.perf_counter()
    run(
        command,
        cwd=place,
        log=place / "log.txt",
        COMPASS_DATA_CACHE=str(place / "cache"),
        PYTHONPATH=str(watch),
        STOPWATCH=str(watch / "seconds"),
    )
    total = time.perf_counter() - begun
    spent = watch / "seconds"
    if not spent.is_file():
        raise SystemExit(f"{command[0]} generated nothing: {(place / 'log.txt').read_text()[-2000:]}")
    return Timed(total, sum(float(line) for line in spent.read_text().split()))


def require_number(text: str, who: str, place: Path) -> None:
    """A peer that failed is not fast."""
    try:
        float(text)
    except ValueError:
        raise SystemExit(f"{who} has no score ({text}): {(place / 'log.txt').read_text()[-2000:]}") from None


def for_transformers_4(model: Path, target: Path) -> None:
    """A copy with config and tokenizer as transformers 4 wrote them."""
    shutil.copytree(model, target)
    config = json.loads((model / "config.json").read_text())
    rope = config.pop("rope_parameters", {})
    config |= {"rope_theta": rope.get("rope_theta", 10000.0), "torch_dtype": config.pop("dtype", "bfloat16")}
    (target / "config.json").write_text(json.dumps(config))
    tokenizer = json.loads((model / "tokenizer_config.json").read_text())
    tokenizer.pop("backend", None)
    tokenizer["model_input_names"] = ["input_ids", "attention_mask"]
    template = model / "chat_template.jinja"
    if template.is_file():
        tokenizer["chat_template"] = template.read_text()
    (target / "tokenizer_config.json").write_text(json.dumps(tokenizer))


def run(command: Sequence[str], *, cwd: Path, log: Path | None = None, **environment: str) -> str:
    """What a command prints; it has to end well."""
    told = subprocess.run(
        command,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if log else subprocess.PIPE,
        env={**os.environ, "OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1", **environment},
        text=True,
        check=False,
    )
    if log:
        log.write_text(told.stdout)
    if told.returncode:
        raise SystemExit(f"{command[0]} failed: {(told.stdout + (told.stderr or ''))[-3000:]}")
    return told.stdout


if __name__ == "__main__":
    raise SystemExit(main())
