"""What a prompt alone gives is measured before the agent starts and stands beside what training gives."""

from __future__ import annotations

import json

from run_bench import Bench


def rows(bench: Bench) -> list[dict]:
    return [json.loads(line) for line in bench.only.ledger.read_text("utf-8").splitlines()]


def test_a_prompt_alone_is_measured_before_the_clock_and_told_everywhere(bench: Bench) -> None:
    done = bench.run("noop")
    assert done.returncode == 0, done.stderr
    told = json.loads(bench.only.record.read_bytes())["format_control"]
    assert (told["task"], told["split"], told["score"]["n"]) == ("boolean:4shot", "test", 20)
    # the scripted engine answers a question alike, whatever stands before it
    assert told["improvement"]["value"] == 0.0
    kinds = [row["kind"] for row in rows(bench)]
    assert kinds.index("control") < kinds.index("started")
    assert "training +0.0, a prompt alone +0.0" in done.stdout
    assert "a prompt alone +0.0" in bench.posttrain("show", bench.only.run_id).stdout
    listed = json.loads(bench.posttrain("results", "--runs", "--json").stdout)
    assert listed[0]["format_control"]["task"] == "boolean:4shot"
    assert bench.posttrain("verify", bench.only.run_id).returncode == 0


def test_a_run_under_the_control_s_own_prompt_has_nothing_to_compare_with(bench: Bench) -> None:
    done = bench.run("noop", task="boolean:4shot")
    assert done.returncode == 0, done.stderr
    assert json.loads(bench.only.record.read_bytes())["format_control"] is None
    assert "a prompt alone: not measured" in done.stdout


def test_verify_notices_a_control_that_was_changed(bench: Bench) -> None:
    assert bench.run("noop").returncode == 0
    measured = next(row["data"] for row in rows(bench) if row["kind"] == "control")
    path = bench.lab.baselines / f"{measured['key']}.json"
    kept = json.loads(path.read_bytes())
    for item in kept["assessment"]["evaluation"]["items"]:
        item["value"] = 1.0
    path.write_text(json.dumps(kept), "utf-8")
    found = bench.posttrain("verify", bench.only.run_id)
    assert found.returncode == 1
    assert "a prompt alone" in found.stdout
