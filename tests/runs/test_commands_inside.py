"""What an agent can call inside its workspace, where the tasks are covered."""

from __future__ import annotations

import shutil

import pytest

from run_bench import Bench

START = """
mkdir -p output/v1 && cp -L "$MODEL_PATH"/*.json "$MODEL_PATH"/*.safetensors output/v1/
posttrain doctor output/v1 --base "$MODEL_PATH"; echo "doctor: $?"
posttrain provenance output/v1 --base "$MODEL_PATH"; echo "provenance: $?"
posttrain list tasks; echo "list: $?"
posttrain submit output/v1
"""


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")
def test_commands_about_checkpoints_work_in_the_view_and_others_say_why_not(bench: Bench) -> None:
    agent = bench.agents / "curious"
    agent.mkdir()
    (agent / "config.yaml").write_text("name: Curious\nstart: start.sh\nnetwork: grader\n", "utf-8")
    (agent / "start.sh").write_text(START, "utf-8")

    ended = bench.run("curious", "--sandbox", "bwrap")

    assert ended.returncode == 0, ended.stderr
    said = bench.only.agent_log.read_text("utf-8")
    assert "values.unchanged" in said
    assert "doctor: 1" in said
    assert "copy_of_base" in said
    assert "provenance: 0" in said
    assert "the lab's tasks, which a workspace does not show" in said
    assert "list: 2" in said
    assert "unexpected failure" not in said
