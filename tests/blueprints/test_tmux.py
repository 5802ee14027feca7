"""tmux's traps: names that it rewrites, finds by prefix or splits; commands that must arrive as written."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from blueprints.bench import Bench, needs_tmux, wait_until
from posttrain.blueprints.state import session_name
from posttrain.infra.tmux import TmuxError, safe_name

pytestmark = needs_tmux

NAMES = [
    "a.b",
    "a:b",
    "=q",
    "$HOME",
    "with space",
    "实验_一",
    "-dash",
    "semi;colon",
    "quo'te\"s",
    "100%",
    "#{pid}",
]


@pytest.mark.parametrize("name", NAMES)
def test_a_session_is_found_by_the_name_it_was_given(name: str, bench: Bench) -> None:
    tmux = bench.tmux()
    other = tmux.create("other", folder=bench.root)

    made = tmux.create(name, folder=bench.root)

    found = tmux.find(name)
    assert found == made
    tmux.kill(made)
    assert tmux.find(name) is None
    assert [session.id for session in tmux.sessions()] == [other.id]


def test_a_name_is_not_found_by_its_beginning(bench: Bench) -> None:
    tmux = bench.tmux()
    tmux.create("train_10", folder=bench.root)

    assert tmux.find("train_1") is None
    assert bench.call("wait", "train_1", "5")[0] == 1


def test_a_taken_name_is_refused(bench: Bench) -> None:
    tmux = bench.tmux()
    tmux.create("a_b", folder=bench.root)

    with pytest.raises(TmuxError, match="duplicate"):
        tmux.create("a.b", folder=bench.root)


def test_a_session_is_recognised_after_renaming_and_not_confused_after_a_restart(bench: Bench) -> None:
    tmux = bench.tmux()
    made = tmux.create("before", folder=bench.root)
    subprocess.run(["tmux", "rename-session", "-t", "before", "after"], env=bench.env, check=True)

    now = tmux.current(made)
    assert now is not None
    assert now.name == "after"

    subprocess.run(["tmux", "kill-server"], env=bench.env, check=True)
    assert tmux.current(made) is None
    time.sleep(1.1)  # creation times have whole seconds
    assert tmux.create("before", folder=bench.root).id == made.id
    assert tmux.current(made) is None


@pytest.mark.parametrize(
    "line", ["echo one;", "echo 'a b' \"c\" $((1+1));", "echo ';' \\;", "echo -n; echo x"]
)
def test_typed_lines_arrive_whole(line: str, bench: Bench) -> None:
    tmux = bench.tmux()
    session = tmux.create("typing", folder=bench.root)

    tmux.type_line(session, "cat > typed")
    tmux.type_line(session, line)
    subprocess.run(["tmux", "send-keys", "-t", "typing", "C-d"], env=bench.env, check=True)

    typed = bench.root / "typed"
    wait_until(lambda: typed.exists() and typed.read_text() == line + "\n")


COMMANDS = {
    "trailing-semicolon": ("echo one;", "one"),
    "quotes": ("""echo "it's" 'a "quoted"' \\$HOME `echo ticks`""", 'it\'s a "quoted" $HOME ticks'),
    "newlines": ("A=1\necho first\\\n second\nif true; then\n  echo $A\nfi", "first second\n1"),
    "chinese": ("echo 你好，世界", "你好，世界"),
    "here-document": ("cat <<'END'\nline $x\nEND", "line $x"),
    "long": ("echo " + "x" * 4000, "x" * 4000),
    "many-words": ("printf '%s' " + " ".join(f"--option-{n}={n}" for n in range(300)) + " | wc -c", "4580"),
    "ends-in-backslash-comment": ("echo last # comment \\", "last"),
    "percent-and-hash": ("echo '#{session_name} %1 %%'", "#{session_name} %1 %%"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_run_as_written(name: str, bench: Bench) -> None:
    command, expected = COMMANDS[name]
    source = bench.blueprint(command)

    ran = bench.run(source)

    assert ran.exit_code == 0
    log = bench.results().log(1).read_text("utf-8").splitlines()
    texts = [line.partition("] ")[2] for line in log if "[posttrain]" not in line]
    assert "\n".join(texts) == expected


def test_places_with_spaces_quotes_and_chinese_work(bench: Bench) -> None:
    strange = bench.root / "my 'lab' \"七\" $HOME;"
    moved = Bench(root=strange, env={**bench.env, "POSTTRAIN_HOME": str(strange / "home")})
    moved.code.mkdir(parents=True)

    ran = moved.run(moved.blueprint("pwd"))

    assert ran.exit_code == 0
    assert str(moved.code) in moved.results().log(1).read_text("utf-8")


@pytest.mark.parametrize(
    ("purpose", "expected"),
    [
        ("Compare top_k: 50 vs. 20", "ajet_Compare_top_k_50_vs_20_1a2b"),
        ("验证 top_k 对 GSM8K 的影响", "ajet_top_k_GSM8K_1a2b"),
        ("验证影响", "ajet_lab-blueprint_1a2b"),
        ("$HOME=q;", "ajet_HOME_q_1a2b"),
    ],
)
def test_session_names_carry_ajet_and_the_purpose_in_safe_letters(purpose: str, expected: str) -> None:
    assert session_name("lab-blueprint-1a2b", purpose) == expected


def test_safe_names_are_bounded_and_may_be_empty() -> None:
    assert safe_name("实验。") == ""
    assert len(safe_name("x" * 500)) <= 48


def test_the_session_does_not_see_our_secrets(bench: Bench) -> None:
    bench.env["OPENAI_API_KEY"] = "sk-secret"
    bench.env["HF_TOKEN"] = "hf-secret"
    source = bench.blueprint("env; tmux show-environment -g 2>/dev/null")

    code, _, _ = bench.call("blueprint", "run", source, "--pass-env", "HF_TOKEN")

    assert code == 0
    log = bench.results().log(1).read_text("utf-8")
    assert "sk-secret" not in log
    assert "HF_TOKEN=hf-secret" in log
    assert f"VIRTUAL_ENV={Path(sys.executable).parent.parent}" in log
