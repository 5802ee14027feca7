"""The real OpenCompass, installed by the product: does it ask in our words, and does our reader read it?"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from posttrain.benchmarks.prompts import build_prompts, prompt_settings
from posttrain.benchmarks.registry import TaskRegistry
from posttrain.core.paths import LabPaths
from posttrain.core.scores import Item
from posttrain.infra.tool_envs.install import install
from posttrain.infra.tool_envs.recipes import recipe
from posttrain.testing.tiny import tiny_model
from run_bench import Bench

TASK = "opencompass:gsm8k_gen_1d7fe4"


@pytest.mark.slow
@pytest.mark.network
def test_opencompass_asks_what_our_four_shot_variant_asks(
    model_cache: LabPaths, lab: LabPaths, shared_data: Path, tmp_path: Path
) -> None:
    install(recipe("opencompass"), model_cache, host=dict(os.environ), wanted=None, say=print)
    lab.envs.symlink_to(model_cache.envs)
    lab.agents.mkdir()
    bench = Bench(lab, tiny_model(tmp_path / "base"), {"POSTTRAIN_DATA": str(shared_data)})
    done = bench.run("noop", "--limit", "4", task=TASK)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "self-check: gold 100.0, empty 0.0" in bench.only.run_log.read_text("utf-8")

    work = bench.only.grading_of("baseline-test") / "opencompass"
    rows = [
        json.loads(line) for line in (work / "cache/data/gsm8k/test.jsonl").read_text("utf-8").splitlines()
    ]
    [predictions] = work.glob("out/*/predictions/checkpoint/gsm8k.json")
    asked = json.loads(predictions.read_text("utf-8"))
    settings = prompt_settings(TaskRegistry().load("gsm8k:4shot"), has_chat_template=True)
    for index, row in enumerate(rows):
        [ours] = build_prompts([Item(id=str(index), fields=row)], settings)
        theirs = asked[str(index)]["origin_prompt"]
        assert [turn.content for turn in ours.turns] == [turn["prompt"] for turn in theirs]
