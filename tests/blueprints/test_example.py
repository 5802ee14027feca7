"""The example blueprint and the cost of watching, as they are: minutes, so not in every run."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from blueprints.bench import Bench, assert_documents, needs_tmux
from posttrain.infra.models import Model

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "docs" / "examples" / "grpo_boolean"


@needs_tmux
@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_the_example_trains_for_real_and_is_reported(bench: Bench, default_model: Model) -> None:
    pytest.importorskip("trl")
    shutil.copytree(EXAMPLE, bench.root / "grpo_boolean")
    source = bench.root / "grpo_boolean" / "blueprint.md"
    text = source.read_text("utf-8").replace("/srv/lab/venv/bin/python", sys.executable)
    source.write_text(text.replace("/srv/lab", str(bench.root)), "utf-8")
    config = bench.root / "grpo_boolean" / "code" / "config.yaml"
    yaml = config.read_text("utf-8").replace("/srv/lab/models/smollm2-135m", str(default_model.folder))
    config.write_text(yaml.replace("max_steps: 30", "max_steps: 4").replace("every: 10", "every: 2"), "utf-8")

    code, _, told = bench.call("blueprint", "run", source, timeout=1200)

    assert code == 0, told
    results = bench.results("grpo_boolean")
    report = assert_documents(results, outcome="succeeded", reason="finished")
    assert [row["step"] for row in report["evaluations"]] == [0, 2, 4]
    assert report["progress"]["step"] == 4
    assert "trl" in report["versions"]
    assert results.curve.read_bytes().startswith(b"\x89PNG")


@needs_tmux
@pytest.mark.slow
def test_watching_costs_less_than_half_a_percent_of_a_core_and_80_mb() -> None:
    argv = [sys.executable, str(ROOT / "benchmarks" / "watch_cost.py"), "--seconds", "60"]

    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=200)

    cost = json.loads(done.stdout)
    assert cost["together_cpu_percent"] < 0.5
    assert cost["executor_peak_mb"] + cost["wrapper_peak_mb"] < 80


def test_the_result_shown_in_the_documentation_is_complete() -> None:
    text = (EXAMPLE / "result.md").read_text("utf-8")

    for section in (
        "Purpose",
        "What ran",
        "Timeline",
        "Metrics",
        "Curve",
        "Errors and repairs",
        "Conclusion",
    ):
        assert f"\n## {section}" in text
    assert (EXAMPLE / "curve.png").is_file()
