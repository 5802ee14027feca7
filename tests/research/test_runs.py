"""Whole runs of `rdagent` over real HTTP, with the grading server, the sandbox and a played driver model."""

from __future__ import annotations

import json

from posttrain.core.runs import RunRecord
from posttrain.research.places import Places
from research.conftest import Played
from research.kit import FIVE, journal, play
from run_bench import Bench


def test_five_iterations_of_every_kind_end_in_a_tested_submission(bench: Bench, played: Played) -> None:
    played(play(FIVE))
    bench.environment["LOOP_N"] = "5"
    ended = bench.run("rdagent", "--limit", "100")
    paths = bench.only
    log = paths.agent_log.read_text("utf-8")
    nodes = journal(paths)
    assert [(node.kind, node.parent) for node in nodes] == [
        ("draft", None), ("draft", None), ("debug", 2), ("debug", 3), ("draft", None),
    ], log  # fmt: skip
    assert [node.failure and node.failure.fault for node in nodes] == [
        None, "crash", "diverged", "answer", None,
    ]  # fmt: skip
    assert [(node.decision.kept, node.decision.by) for node in nodes] == [
        (True, "numbers"), (False, "failure"), (False, "failure"), (False, "failure"), (False, "numbers"),
    ]  # fmt: skip
    assert ended.returncode == 0
    record = RunRecord.model_validate_json(paths.record.read_bytes())
    assert record.result is not None
    assert record.result.submission_id == 1
    summary = (paths.reports / "summary.md").read_text("utf-8")
    assert summary.count("## Iteration ") == 5
    account = json.loads(Places(paths.workspace).summary.read_text("utf-8"))
    assert account["usage"]["calls"] == 15
    assert account["usage"]["cost"] > 0
    everything = [path for path in Places(paths.workspace).root.rglob("*") if path.is_file()]
    assert not any(b"sk-played-key" in path.read_bytes() for path in everything)
    checked = bench.posttrain("report", "check", paths.run_id)
    assert checked.returncode == 0, checked.stdout + checked.stderr + summary
    shown = bench.posttrain("show", paths.run_id, "--journal")
    assert shown.stdout.startswith("#1 draft ★: teach the words")
    assert "5 iterations, 2 graded, 1 kept; driver model: 15 answers" in shown.stdout
    told = json.loads(bench.posttrain("show", paths.run_id, "--journal", "--json").stdout)
    assert [node["number"] for node in told["nodes"]] == [1, 2, 3, 4, 5]
