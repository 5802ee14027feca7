"""Forty ways of writing the same blueprint, twenty broken ones, and the pieces of the parser."""

from __future__ import annotations

from pathlib import Path

import pytest

from posttrain.blueprints.blueprint import Blueprint, Label
from posttrain.blueprints.check import check
from posttrain.blueprints.limits import LimitError, parse_limit
from posttrain.blueprints.local import LocalMachine
from posttrain.blueprints.parse import parse

CORPUS = Path(__file__).parent / "corpus"
GOOD = sorted((CORPUS / "good").glob("*.md"))
BROKEN = sorted((CORPUS / "broken").glob("*.md"))
COMMAND = "python -m ajet.launcher --conf 'tests/bench/math top_k.yaml' --autokill"


@pytest.fixture
def lab_folder(tmp_path: Path) -> Path:
    """What `/lab` in the corpus stands for, with everything that the blueprints name."""
    code = tmp_path / "my project" / "code"
    (code / "tests" / "bench").mkdir(parents=True)
    (code / "tests" / "bench" / "math top_k.yaml").write_text("top_k: 50\n")
    (code / "broken.yaml").write_text("a: 1\nb: [1, 2\nc: 3\n")
    (tmp_path / "outside.yaml").write_text("a: 1\n")
    python = tmp_path / "my project" / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\n")
    python.chmod(0o755)
    (tmp_path / "my project" / "notes.txt").write_text("not executable")
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "a file").write_text("")
    return tmp_path


def read(path: Path, lab: Path) -> str:
    return path.read_bytes().decode("utf-8").replace("/lab/", f"{lab}/")


def test_the_corpus_has_forty_styles() -> None:
    assert len(GOOD) == 40


@pytest.mark.parametrize("path", GOOD, ids=lambda path: path.stem)
def test_every_style_parses_to_the_same_content(path: Path, lab_folder: Path) -> None:
    checked = check(read(path, lab_folder), source=Path("b.md"), machine=LocalMachine(env={}))

    assert [str(problem) for problem in checked.problems] == []
    assert checked.blueprint == Blueprint(
        source=Path("b.md"),
        purpose="Compare top_k=50 with top_k=20 on GSM8K; differs from blueprint 01 only in top_k.",
        codebase=lab_folder / "my project" / "code",
        python=lab_folder / "my project" / ".venv" / "bin" / "python",
        yaml=lab_folder / "my project" / "code" / "tests" / "bench" / "math top_k.yaml",
        command=COMMAND,
        results=lab_folder / "results" / "top k 50",
        max_time_s=8 * 3600.0,
        notes="Blueprint 01 (top_k=20) reached 0.41 after 6 hours.",
    )


def test_the_corpus_has_twenty_broken_files() -> None:
    assert len(BROKEN) == 20


@pytest.mark.parametrize("path", BROKEN, ids=lambda path: path.stem)
def test_every_fault_is_told_with_its_line(path: Path, lab_folder: Path) -> None:
    """The first line of the file says which error is expected."""
    text = read(path, lab_folder)
    line, _, message = text.partition("expect ")[2].partition(" -->")[0].partition(" ")

    checked = check(text, source=path, machine=LocalMachine(env={}))

    assert checked.blueprint is None
    told = [str(problem) for problem in checked.errors]
    assert len(told) == 1
    assert told[0].startswith(f"line {line}: error: {message}")


@pytest.mark.parametrize(
    ("text", "hours"),
    [
        ("8h", 8),
        ("90m", 1.5),
        ("8 小时", 8),
        ("30 分钟", 0.5),
        ("2 hours", 2),
        ("0.5h", 0.5),
        ("1h30m", 1.5),
        ("1 小时 30 分钟", 1.5),
        ("运行时间不超过 8h，每个实验强制在 8h 后终止", 8),
        ("十二小时", 12),
        ("一个半小时", 1.5),
        ("半小时", 0.5),
        ("half an hour", 0.5),
        ("not more than 2 hours 15 minutes.", 2.25),
        ("1 day", 24),
        ("90 seconds", 0.025),
    ],
)
def test_limits_are_read_with_their_unit(text: str, hours: float) -> None:
    assert parse_limit(text) == (pytest.approx(hours * 3600), True)


def test_a_bare_number_means_hours_and_is_told(lab_folder: Path) -> None:
    text = read(CORPUS / "good" / "11-plain-key-value.md", lab_folder).replace("8h", "8")

    checked = check(text, source=Path("b.md"), machine=LocalMachine(env={}))

    assert checked.blueprint is not None
    assert checked.blueprint.max_time_s == 8 * 3600
    assert [str(problem) for problem in checked.problems] == [
        "line 7: warning: [exp_max_time] has no unit and is read as hours: 8h"
    ]


@pytest.mark.parametrize(
    "text", ["", "0h", "-3h", "8 parsecs", "1:30", "8h or 9h", "${MaxTime}", "8 GPU", "99999h"]
)
def test_limits_that_say_nothing_are_refused(text: str) -> None:
    with pytest.raises(LimitError):
        parse_limit(text)


def test_a_command_of_several_lines_is_kept_as_typed() -> None:
    text = "[exp_launch_command]\n```bash\nexport A=1\npython x.py \\\n    --lr 1e-4; echo done;\n```\n"

    assert parse(text).parts[Label.COMMAND].value == ("export A=1\npython x.py \\\n    --lr 1e-4; echo done;")


def test_headings_that_are_no_label_belong_to_the_notes() -> None:
    text = "## exp_max_time\n8h\n## Notes\nfirst\n## Setup\nsecond\n"

    assert parse(text).parts[Label.NOTES].value == "first\n## Setup\nsecond"
    assert parse(text).parts[Label.MAX_TIME].value == "8h"


def test_services_are_read_from_their_own_part_or_from_the_notes(lab_folder: Path) -> None:
    good = read(CORPUS / "good" / "01-seed-numbered-chinese.md", lab_folder)
    machine = LocalMachine(env={})
    labelled = (
        good + "9. [exp_service_command] `redis-server --port 7000`\n10. [exp_service_ready] port 7000\n"
    )
    mentioned = good + "先启动 `ajet swarm server --port 10086`。\n"

    own = check(labelled, source=Path("b.md"), machine=machine).blueprint
    found = check(mentioned, source=Path("b.md"), machine=machine).blueprint

    assert own is not None
    assert (own.service_command, own.service_ready) == ("redis-server --port 7000", "port 7000")
    assert found is not None
    assert found.service_command == "ajet swarm server --port 10086"


_AJET = """
ajet:
  execute_test: {execute_test}
  trainer_common:
    val_before_train: {val_before_train}
    test_freq: {test_freq}
    total_epochs: {total_epochs}
    n_gpus_per_node: {n_gpus_per_node}
    val_print_to_markdown_file_path: {path}
"""
_RIGHT = {
    "execute_test": "False",
    "val_before_train": "True",
    "test_freq": "10",
    "total_epochs": "100",
    "n_gpus_per_node": "2",
    "path": "saved/val.md",
}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("execute_test", "True"),
        ("val_before_train", "train"),
        ("test_freq", "0"),
        ("total_epochs", "1"),
        ("n_gpus_per_node", "8"),
        ("path", "''"),
        ("path", "/proc/val.md"),
    ],
)
def test_yaml_hints_warn_with_the_key(key: str, value: str, lab_folder: Path) -> None:
    yaml = lab_folder / "my project" / "code" / "tests" / "bench" / "math top_k.yaml"
    machine = LocalMachine(env={"CUDA_VISIBLE_DEVICES": "0,1"})
    good = read(CORPUS / "good" / "01-seed-numbered-chinese.md", lab_folder)

    yaml.write_text(_AJET.format(**_RIGHT))
    assert check(good, source=Path("b.md"), machine=machine).problems == ()

    yaml.write_text(_AJET.format(**{**_RIGHT, key: value}))
    warned = check(good, source=Path("b.md"), machine=machine)

    assert warned.blueprint is not None
    name = "val_print_to_markdown_file_path" if key == "path" else key
    assert [name in str(problem) for problem in warned.problems] == [True]
    assert warned.problems[0].line == 6


OTHER_STYLES = {
    "title-before-id": "实验目的 [exp_purpose]：A b\n**代码库** `exp_codebase_dir`: `/a b`\n",
    "id-as-hint": "## 实验目的 (exp_purpose)\nA b\n## Codebase (`exp_codebase_dir`)\n/a b\n",
    "yaml-block": '# B\n```yaml\nexp_purpose: |\n  A b\nexp_codebase_dir: "/a b"\nexp_max_time: 8h\n```\n',
    "definition-list": "exp_purpose\n: A b\n\nexp_codebase_dir\n: /a b\n",
    "markdown-in-an-answer": "Here it is:\n```markdown\n[exp_purpose] A b\n[exp_launch_command]\n"
    "```bash\nx\n```\n[exp_codebase_dir] /a b\n```\nGood luck!\n",
    "short-titles": "- 目标：A b\n- 项目路径：/a b\n",
}


@pytest.mark.parametrize("style", OTHER_STYLES)
def test_other_styles_are_understood_too(style: str) -> None:
    parsed = parse(OTHER_STYLES[style])

    assert parsed.problems == ()
    assert parsed.parts[Label.PURPOSE].value == "A b"
    assert parsed.parts[Label.CODEBASE].value == "/a b"


@pytest.mark.parametrize(("text", "hours"), [("8 (hours)", 8), ("two hours", 2), ("30 (minutes)", 0.5)])
def test_limits_in_words(text: str, hours: float) -> None:
    assert parse_limit(text) == (hours * 3600, True)
