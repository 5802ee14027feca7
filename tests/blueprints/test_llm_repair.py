"""Repairs that a model proposes: carried out on copies, refused where they ask for more, always recorded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from blueprints.bench import Bench, assert_documents
from posttrain.blueprints.llm_repair import LlmRepairer
from posttrain.blueprints.rules import RuleBook
from posttrain.llm.client import LlmClient
from posttrain.llm.settings import LlmSettings
from posttrain.llm.transcript import Transcript
from posttrain.testing.scripted_llm import ScriptedLlm

COMMAND = "python train.py --conf config.yaml"
YAML = "# kept\nlearning_rte: 0.1\nsteps: 3\n"
TRAIN = """
import json, os, sys, yaml
from pathlib import Path
Path("env.json").write_text(json.dumps(dict(os.environ)))
config = yaml.safe_load(Path(sys.argv[2]).read_text())
print("learning rate", config["learning_rate"], flush=True)
"""
KEY = "sk-of-the-operator-123456"
GOOD = {
    "cause": "the YAML spells learning_rate wrong",
    "edits": [{"path": "config.yaml", "find": "learning_rte", "replace": "learning_rate"}],
}


def environment(llm: ScriptedLlm) -> dict[str, str]:
    return {"CHAT_MODEL": "scripted", "OPENAI_API_BASE": llm.url, "OPENAI_API_KEY": KEY}


def ran(bench: Bench, source: Path, script: list[dict[str, Any]]) -> ScriptedLlm:
    """Run with rules and a model that answers as scripted."""
    machine = bench.machine()
    with ScriptedLlm(script) as llm:
        settings = LlmSettings.from_environment(environment(llm))

        def connect(_source: Path, remaining: Any) -> LlmClient:
            return LlmClient(settings, transcript=Transcript(None), remaining=remaining)

        bench.run(
            source,
            tmux=False,
            machine=machine,
            repairers=(RuleBook(machine), LlmRepairer(machine, connect)),
        )
    return llm


def files(bench: Bench) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in bench.code.iterdir() if path.name != "env.json"}


def trials(bench: Bench) -> str:
    return bench.results().trial_and_error.read_text("utf-8")


def test_a_model_repairs_a_broken_yaml_from_the_command_line_and_the_experiment_sees_no_key(
    bench: Bench,
) -> None:
    bench.script(TRAIN)
    source = bench.blueprint(COMMAND, yaml=YAML)
    before = files(bench)
    with ScriptedLlm([{"json": GOOD}]) as llm:
        bench.env |= environment(llm)
        code, _, err = bench.call("blueprint", "run", source, "--no-tmux")
    assert code == 0, err
    assert_documents(bench.results(), outcome="succeeded", reason="finished")
    repaired = bench.code / "config.repair-1.yaml"
    assert repaired.read_text("utf-8") == YAML.replace("learning_rte", "learning_rate")
    assert {name: files(bench)[name] for name in before} == before  # the originals are as they were
    assert "- repair by `llm`: the YAML spells learning_rate wrong" in trials(bench)
    assert "scripted was asked 1 time(s)" in trials(bench)
    seen = json.loads((bench.code / "env.json").read_text("utf-8"))
    assert KEY not in json.dumps(seen)
    assert "CHAT_MODEL" not in seen
    assert "KeyError: 'learning_rate'" in llm.requests[0].body["messages"][-1]["content"]
    transcript = bench.state_paths(source).transcript.read_text("utf-8")
    assert "learning_rte" in transcript
    assert KEY not in transcript


def test_a_model_repairs_code_in_a_copy_that_the_command_then_names(bench: Bench) -> None:
    bench.script(TRAIN.replace('"learning_rate"', '"learning_rte_"'))
    source = bench.blueprint(COMMAND, yaml=YAML)
    edit = {"path": "train.py", "find": '"learning_rte_"', "replace": '"learning_rte"'}
    ran(bench, source, [{"json": {"cause": "a name", "edits": [edit]}}])
    assert_documents(bench.results(), outcome="succeeded", reason="finished")
    assert bench.state(source).attempt.variation.command.endswith("train.repair-1.py --conf config.yaml")


HUGE = {"path": "config.yaml", "find": "steps", "replace": "z" * 30_000}
BIG = "x: " + "1" * 15_000 + "\n"


@pytest.mark.parametrize(
    ("edits", "told"),
    [
        ([{"path": "../outside.yaml", "find": "a", "replace": "b"}], "none of: config.yaml, train.py"),
        ([{"path": "/etc/passwd", "find": "root", "replace": "me"}], "none of: config.yaml, train.py"),
        ([{"path": "config.yaml/../../x", "find": "a", "replace": "b"}], "none of: config.yaml"),
        ([{"path": "link.yaml", "find": "a", "replace": "b"}], "none of: config.yaml, train.py"),
        (
            [
                {"path": "config.yaml", "find": "steps: 3\n", "replace": BIG},
                {"path": "train.py", "find": "import json", "replace": "#" * 15_000},
            ],
            "more than 20000",
        ),
        ([{"path": "config.yaml", "find": "absent", "replace": "b"}], "occurs 0 times"),
        ([{"path": "config.yaml", "find": "\n", "replace": "b"}], "occurs 3 times"),
        ([{"path": "config.yaml", "find": "steps: 3", "replace": "steps: [3"}], "would be no YAML"),
        ([{"path": "train.py", "find": "import json", "replace": "import ("}], "would be no Python"),
        ([{"path": "config.yaml", "find": "steps", "replace": "steps"}], "what is there already"),
        ([], "proposes no change: no idea"),
    ],
)
def test_an_answer_that_may_not_be_done_is_refused_and_recorded(
    bench: Bench, edits: list[dict[str, str]], told: str
) -> None:
    bench.script(TRAIN)
    (bench.root / "outside.yaml").write_text("a: 1\n", "utf-8")
    (bench.code / "link.yaml").symlink_to(bench.root / "outside.yaml")
    source = bench.blueprint(f"{COMMAND} link.yaml", yaml=YAML)
    before = files(bench)
    llm = ran(bench, source, [{"json": {"cause": "no idea", "edits": edits}}])
    assert_documents(bench.results(), outcome="failed", reason="traceback")
    refused = [line for line in trials(bench).splitlines() if line.startswith("- proposal refused: llm: ")]
    assert len(refused) == 1
    assert told in refused[0]
    assert files(bench) == before
    assert (bench.root / "outside.yaml").read_text("utf-8") == "a: 1\n"
    assert "a: 1" not in llm.requests[0].body["messages"][-1]["content"]  # what the link leads to stays here


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ([{"text": "I would check the file.", "times": "always"}], "no usable answer"),
        ([{"json": {"cause": "x"}, "times": "always"}], "no usable answer"),
        ([{"status": 401, "times": "always"}], "no usable answer"),
        ([{"json": {"cause": "x", "edits": [HUGE]}, "times": "always"}], "no usable answer"),
    ],
)
def test_a_model_that_fails_leaves_the_rules_outcome(
    bench: Bench, script: list[dict[str, Any]], told: str
) -> None:
    bench.script(TRAIN)
    ran(bench, bench.blueprint(COMMAND, yaml=YAML), script)
    assert_documents(bench.results(), outcome="failed", reason="traceback")
    assert told in trials(bench)


def test_rules_come_first_and_a_model_is_not_asked_what_they_know(bench: Bench) -> None:
    bench.script("open('out/x.txt', 'w').write('done')\n")
    llm = ran(bench, bench.blueprint("python train.py config.yaml"), [{"json": GOOD}])
    assert_documents(bench.results(), outcome="succeeded", reason="finished")
    assert llm.requests == []


def test_repairs_are_bounded(bench: Bench) -> None:
    bench.script("import sys\nprint(open(sys.argv[1]).read())\nraise RuntimeError('never works')\n")
    step = {"path": "config.yaml", "find": "a: ", "replace": "a: 1"}
    advice = [
        {"json": {"cause": "x", "edits": [step]}},
        *(
            {"json": {"cause": "x", "edits": [step | {"path": f"config.repair-{number}.yaml"}]}}
            for number in (1, 2, 3)
        ),
    ]
    source = bench.blueprint("python train.py config.yaml", yaml="a: 1\n")
    llm = ran(bench, source, advice)
    assert_documents(bench.results(), outcome="failed", reason="traceback")
    assert len(llm.requests) == 3
    assert (bench.code / "config.repair-3.yaml").read_text("utf-8") == "a: 1111\n"


def test_a_model_that_is_named_but_cannot_be_used_is_a_line_and_rules_go_on(bench: Bench) -> None:
    bench.script("print('fine')\n")
    source = bench.blueprint("python train.py config.yaml")
    bench.env |= {"CHAT_MODEL": "gpt-5.2"}
    code, _, err = bench.call("blueprint", "run", source, "--no-tmux")
    assert code == 0
    assert "repairs by rules alone: OPENAI_API_KEY is not set" in err
