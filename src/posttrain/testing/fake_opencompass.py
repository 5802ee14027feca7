"""A stand-in for an installed OpenCompass: the same command line, requests and files, in a tenth of a second.

`install_fake_opencompass` writes it into a lab home as the tool environment `opencompass`. It reads the
configuration that it is given, asks the endpoint in it, judges as gsm8k's evaluator does, and lays out its
results as OpenCompass 0.5.4 does. `fault` makes it go wrong the ways the real one was seen to.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal

from posttrain.core.paths import LabPaths
from posttrain.infra.files import write_json
from posttrain.infra.tool_envs.environments import MANIFEST, EnvManifest
from posttrain.infra.tool_envs.recipes import recipe

Fault = Literal[
    "none",
    "dash",
    "lost_item",
    "own_text",
    "reordered",
    "crash",
    "one_by_one",
    "hang",
    "unjudged",
    "share",
]

_CONFIG = """
gsm8k_datasets = [dict(abbr='gsm8k', path='./data/gsm8k/', metric='accuracy')]
"""
_MODELS = """
class OpenAISDK:
    pass
"""
_MMENGINE = """
import contextlib

@contextlib.contextmanager
def read_base():
    yield
"""
_MAIN = r"""
import concurrent.futures, json, os, re, runpy, sys, time, urllib.request
from pathlib import Path

FAULT = Path(__file__).with_name("fault").read_text()


def ask(model, question):
    body = {"model": model["path"], "max_tokens": 512, "n": 1, "temperature": 0.0,
            "messages": [{"role": "user", "content": question}]}
    request = urllib.request.Request(
        model["openai_api_base"] + "/chat/completions", json.dumps(body).encode(),
        {"Authorization": "Bearer " + model["key"], "Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=model["timeout"]) as reply:
        return json.load(reply)["choices"][0]["message"]["content"]


def number(text):
    found = re.findall(r"-?\d+\.\d+|-?\d+", text.split("Question:")[0])
    return found[-1] if found else "NULL"


def write(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(data if isinstance(data, str) else json.dumps(data))


def main():
    given = runpy.run_path(sys.argv[1])
    [model], dataset = given["models"], given["datasets"][0]
    out = Path(sys.argv[sys.argv.index("--work-dir") + 1]) / "20260211_143000"
    write(out / "configs" / "1.py", "datasets = ["
          + ", ".join(f"dict(abbr={each['abbr']!r})" for each in given["datasets"]) + "]\nmodels = []\n")
    if FAULT == "crash":
        raise SystemExit("Traceback: no such thing")
    if FAULT == "hang":
        time.sleep(3600)
    path = Path(os.environ["COMPASS_DATA_CACHE"]) / dataset["path"] / "test.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    if FAULT == "reordered":  # a loader that shuffles: the same items, none in its place
        rows = rows[1:] + rows[:1]
    questions = [f"Question: {row['question']}\nAnswer:" for row in rows]
    workers = 1 if FAULT == "one_by_one" else model["max_workers"]
    try:
        with concurrent.futures.ThreadPoolExecutor(workers) as pool:
            texts = list(pool.map(lambda question: ask(model, question), questions))
    except OSError as error:
        print(error)
        texts = None
    if texts is None or FAULT == "dash":  # as the real one does: a table of dashes, and exit code 0
        write(out / "summary" / "summary_1.csv",
              f"dataset,version,metric,mode,{model['abbr']}\n{dataset['abbr']},-,-,-,-\n")
        return
    if FAULT == "own_text":
        texts[0] = "#### 1"
    gold = [row["answer"].split("####")[-1].strip().replace(",", "") for row in rows]
    right = [number(text) == truth for text, truth in zip(texts, gold)]
    predictions = {str(index): {"origin_prompt": [{"role": "HUMAN", "prompt": question}], "prediction": text}
                   for index, (question, text) in enumerate(zip(questions, texts))}
    if FAULT == "lost_item":
        predictions.popitem()
    write(out / "predictions" / model["abbr"] / f"{dataset['abbr']}.json", predictions)
    metric, value = dataset["metric"], 100 * sum(right) / len(right)
    if FAULT == "share":
        value /= 100
    result = {metric: value}
    if FAULT not in ("unjudged", "share"):
        result["details"] = [{"pred": [number(text)], "answer": [truth], "correct": [one]}
                             for text, truth, one in zip(texts, gold, right)]
    write(out / "results" / model["abbr"] / f"{dataset['abbr']}.json", result)
    write(out / "summary" / "summary_1.csv",
          f"dataset,version,metric,mode,{model['abbr']}\n{dataset['abbr']},1d7fe4,{metric},gen,{value:.2f}\n")


if __name__ == "__main__":
    main()
"""
_FILES = {
    "opencompass/__init__.py": "",
    "opencompass/models.py": _MODELS,
    "opencompass/configs/__init__.py": "",
    "opencompass/configs/datasets/__init__.py": "",
    "opencompass/configs/datasets/gsm8k/__init__.py": "",
    "opencompass/configs/datasets/gsm8k/gsm8k_gen_1d7fe4.py": _CONFIG,
    "opencompass/configs/datasets/gsm8k/gsm8k_gen.py": "from .gsm8k_gen_1d7fe4 import gsm8k_datasets\n",
    "opencompass/configs/datasets/gsm8k/gsm8k_two_gen.py": (
        "gsm8k_datasets = [dict(abbr='one', path='x'), dict(abbr='two', path='x')]\n"
    ),
    "opencompass/cli/__init__.py": "",
    "opencompass/cli/main.py": _MAIN,
    "mmengine/__init__.py": "",
    "mmengine/config.py": _MMENGINE,
}


def install_fake_opencompass(lab: LabPaths, *, fault: Fault = "none") -> Path:
    """Write the stand-in into a lab home; returns the folder of its environment."""
    folder = lab.tool_env("opencompass")
    packages = folder / "packages"
    for name, text in {**_FILES, "opencompass/cli/fault": fault}.items():
        path = packages / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    python = folder / "bin" / "python"
    python.parent.mkdir(parents=True, exist_ok=True)
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{packages}" exec "{sys.executable}" "$@"\n', "utf-8")
    python.chmod(0o755)
    manifest = EnvManifest(
        tool="opencompass",
        recipe=recipe("opencompass").digest,
        python=f"{sys.version_info[0]}.{sys.version_info[1]}",
        prefixes=(Path(sys.prefix), Path(sys.base_prefix)),
        packages={"opencompass": "fake"},
    )
    write_json(folder / MANIFEST, manifest)
    return folder
