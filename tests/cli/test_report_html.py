"""`posttrain report html` on runs as agents left them."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from posttrain.core.paths import LabPaths, RunPaths
from posttrain.core.runs import RunPlan
from posttrain.infra.files import read_jsonl
from posttrain.runs.folder import locked
from posttrain.testing.agents import write_toy_agent

Finished = tuple[LabPaths, RunPaths]
MARKUP = "<script>alert(1)</script><img src=x onerror=alert(1)>"


@pytest.fixture
def page(finished: Finished, cli, tmp_path: Path) -> Callable[..., str]:
    """Writes the page of the finished run and returns its text."""
    _, paths = finished

    def made(*options: str) -> str:
        target = tmp_path / "page.html"
        shown = cli("report", "html", paths.run_id, "--out", str(target), *options)
        assert shown.returncode == 0, shown.stderr
        return target.read_text("utf-8")

    return made


def test_the_page_tells_the_run(page: Callable[..., str], finished: Finished) -> None:
    _, paths = finished
    text = page()
    for told in (
        paths.run_id,
        "toy on boolean",
        "completed",
        "output/v2",
        "scripted engine",
        "time used ratio",
    ):
        assert told in text
    assert text.count("<circle") == 4
    assert "agent starts" in text


def test_the_page_goes_to_the_current_folder_and_leaves_the_run_as_it_is(finished: Finished, cli) -> None:
    lab, paths = finished
    shown = cli("report", "html", paths.run_id, "--json")
    told = json.loads(shown.stdout)
    assert Path(told["path"]) == lab.home.parent / f"{paths.run_id}.html"
    assert Path(told["path"]).stat().st_size == told["bytes"]
    assert cli("verify", paths.run_id).returncode == 0


def test_no_path_no_host_and_no_hidden_row_is_told(page: Callable[..., str], finished: Finished) -> None:
    lab, paths = finished
    hidden = next(
        row["question"]
        for path in sorted(lab.datasets.glob("*/private/*/test.jsonl"))
        for row in read_jsonl(path)
        if len(row["question"]) > 30
    )
    with paths.agent_log.open("a", encoding="utf-8") as log:
        log.write(f"asked {hidden}\nin {paths.workspace.root}/code and /srv/secret place/x\n")
        log.write("http://127.0.0.1:5000/run/abcdefghijklmnopqrstuvwxyz/submit\n")
    text = page()
    plan = RunPlan.model_validate_json(paths.plan.read_bytes())
    assert hidden not in text
    assert "[a hidden item]" in text
    assert str(lab.home) not in text
    assert str(Path.home()) + "/" not in text
    assert "abcdefghijklmnopqrstuvwxyz" not in text
    assert not set(plan.task.test) & set(re.findall(r"\w+", text))


@pytest.mark.parametrize("kind", ["closed", "died", "no plan", "no log"])
def test_a_run_in_any_state_has_a_page(page: Callable[..., str], finished: Finished, kind: str) -> None:
    _, paths = finished
    gone = {
        "closed": [],
        "died": [paths.record, paths.metrics],
        "no plan": [paths.record, paths.plan, paths.ledger, paths.metrics],
        "no log": [paths.agent_log, paths.run_log],
    }[kind]
    for path in gone:
        path.unlink(missing_ok=True)
    text = page()
    assert ("not finished" in text) == (kind in {"died", "no plan"})
    assert ("nobody works on it" in text) == (kind in {"died", "no plan"})
    assert ("None was graded." in text) == (kind == "no plan")


def test_a_run_that_goes_on_is_shown_as_running(page: Callable[..., str], finished: Finished) -> None:
    _, paths = finished
    paths.record.unlink()
    with locked(paths):
        text = page()
    assert '<p class="status running">' in text
    assert "nobody works on it" not in text


def test_what_an_agent_wrote_is_inert(finished: Finished, page: Callable[..., str]) -> None:
    _, paths = finished
    hostile = f"{MARKUP}\x1b[2J\u202e{{{{ 1 }}}}".encode() + b"\xff"
    paths.agent_log.write_bytes(hostile)
    for folder in (paths.reports, paths.workspace.reports):
        (folder / "summary.md").write_bytes(b"# " + hostile + b"\n- " + hostile)
    text = page()
    assert "<script" not in text
    assert "<img" not in text
    assert "&lt;script&gt;alert(1)" in text
    assert "\x1b" not in text
    assert "\\xff" in text


def test_of_a_log_of_200_mb_only_the_end_is_read(finished: Finished, page: Callable[..., str]) -> None:
    _, paths = finished
    with paths.agent_log.open("wb") as log:
        log.truncate(200 << 20)
        log.seek(0, os.SEEK_END)
        log.write(b"\nthe very end\n")
    text = page()
    assert "the very end" in text
    assert len(text) < 1 << 20
    assert "bytes before are left out" in text


@pytest.mark.parametrize("kind", ["link", "pipe", "folder", "linked folder"])
def test_a_summary_that_is_no_file_is_not_followed(
    finished: Finished, page: Callable[..., str], tmp_path: Path, kind: str
) -> None:
    _, paths = finished
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "summary.md").write_text("# the lab's own secret\n")
    (paths.reports / "summary.md").unlink(missing_ok=True)
    summary = paths.workspace.reports / "summary.md"
    summary.unlink(missing_ok=True)
    if kind == "link":
        summary.symlink_to(secret / "summary.md")
    elif kind == "pipe":
        os.mkfifo(summary)
    elif kind == "folder":
        summary.mkdir()
    else:
        shutil.rmtree(paths.workspace.reports)
        paths.workspace.reports.symlink_to(secret)
    assert "the lab's own secret" not in page()


@pytest.mark.parametrize("place", ["run", "reports", "below", "current"])
def test_the_page_is_not_written_among_the_runs(
    finished: Finished, cli, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    _, paths = finished
    options = {
        "run": ["--out", str(paths.root)],
        "reports": ["--out", str(paths.reports / "page.html")],
        "below": ["--out", str(paths.root.parent / "x.html")],
        "current": [],
    }[place]
    if place == "current":
        monkeypatch.chdir(paths.workspace.root)
    shown = cli("report", "html", paths.run_id, *options)
    assert shown.returncode == 2
    assert shown.stderr.startswith("posttrain: --out:")


@pytest.mark.parametrize("out", ["missing/page.html", "pipe", "/dev/null"])
def test_a_place_that_cannot_hold_a_page_is_wrong_use(
    finished: Finished, cli, tmp_path: Path, out: str
) -> None:
    _, paths = finished
    os.mkfifo(tmp_path / "pipe")
    shown = cli("report", "html", paths.run_id, "--out", str(tmp_path / out))
    assert shown.returncode == 2
    assert len(shown.stderr.splitlines()) == 1
    assert Path("/dev/null").is_char_device()


@pytest.mark.parametrize("name", ["plan.json", "record.json", "ledger.jsonl", "check.json", "request.json"])
@pytest.mark.parametrize("damage", ["half", "empty", "folder", "gone"])
def test_a_damaged_run_is_one_line_that_names_the_file(
    finished: Finished, cli, name: str, damage: str
) -> None:
    _, paths = finished
    file = (paths.reports if name == "check.json" else paths.root) / name
    whole = file.read_bytes()
    file.unlink()
    if damage == "folder":
        file.mkdir()
    elif damage != "gone":
        file.write_bytes(whole[: len(whole) // 2] if damage == "half" else b"")
    made = cli("report", "html", paths.run_id)
    if damage == "gone" and name in {"record.json", "check.json"}:
        assert made.returncode == 0, "a run that goes on has none"
        return
    told = [made, *(cli("report", what, paths.run_id) for what in ("check", "metrics") if name in LEADING)]
    for shown in told:
        assert shown.returncode in (1, 2)
        (line,) = shown.stderr.splitlines()
        assert str(file) in line
        assert "unexpected" not in line


LEADING = {"plan.json", "record.json", "ledger.jsonl"}


@pytest.mark.parametrize("out", ["loop", "loop/page.html", "n" * 300, "/".join(["n" * 200] * 30)])
def test_a_place_without_end_is_wrong_use(finished: Finished, cli, tmp_path: Path, out: str) -> None:
    _, paths = finished
    (tmp_path / "loop").symlink_to("loop")
    for options in ([paths.run_id, "--out", str(tmp_path / out)], [str(tmp_path / out)], [out]):
        shown = cli("report", "html", *options)
        assert shown.returncode == 2
        assert len(shown.stderr.splitlines()) == 1


def test_a_run_that_an_agent_has_set_up_in_its_own_is_none(finished: Finished, cli) -> None:
    _, paths = finished
    forged = paths.workspace.output / "forged"
    forged.mkdir()
    shutil.copyfile(paths.request, forged / "request.json")
    shown = cli("report", "html", str(forged))
    assert shown.returncode == 2
    assert shown.stderr.startswith("posttrain: RUN:")


def test_a_run_that_is_none_is_wrong_use(finished: Finished, cli) -> None:
    assert cli("report", "html", "nothing").returncode == 2


def test_a_whole_hostile_run_makes_a_quiet_page(finished: Finished, cli, scripted_models: Path) -> None:
    lab, _ = finished
    name = "output/<script>alert(2)<\u2044script>"
    steps = [
        {"do": "say", "text": f"{MARKUP}\u202e\x07"},
        {"do": "copy_base", "to": name},
        {"do": "submit", "model_path": name, "note": f"{MARKUP}\u202e"},
        {"do": "submit", "model_path": f"output/{MARKUP.replace('/', '')}", "note": "'\"><b>"},
        {"do": "write", "to": "reports/summary.md", "base64": "IyA8c2NyaXB0PmFsZXJ0KDMpPC9zY3JpcHQ+/wo="},
        {"do": "flood", "megabytes": 1},
    ]
    write_toy_agent(lab.agents, "loud", steps)
    done = cli(
        *("run", "--agent", "loud", "--task", "boolean", "--model", str(scripted_models / "base")),
        *("--engine", "scripted", "--limit", "20", "--timeout", "60", "--port", "0"),
    )
    assert done.returncode == 0, done.stderr
    run = RunPaths(next(lab.runs.glob("*/*_loud")))
    assert cli("report", "html", run.run_id).returncode == 0
    text = (lab.home.parent / f"{run.run_id}.html").read_text("utf-8")
    for mark in ("<script", "<img", "<b>", "\u202e", "\x07"):
        assert mark not in text
    assert "alert(2)" in text
    assert "alert(3)" in text
    assert cli("verify", run.run_id).returncode == 0
