"""Experiments as a whole: repetition, comparison, batches, services, another repairer, the command line."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from pathlib import Path

import pytest

from blueprints.bench import FAST, Bench, assert_documents, events, flag, needs_tmux, running, wait_until
from posttrain.blueprints.batch import run_batch
from posttrain.blueprints.paths import ResultPaths
from posttrain.blueprints.repair import Repair, RepairCase, Variation

pytestmark = needs_tmux


def test_a_finished_blueprint_is_not_run_again_unless_asked(bench: Bench) -> None:
    source = bench.blueprint("echo x >> starts")

    bench.run(source)
    first = flag(bench.results())
    bench.run(source)
    assert flag(bench.results()) == first

    bench.run(source, again=True)

    assert (bench.code / "starts").read_text() == "x\nx\n"
    assert json.loads((bench.results().previous / "1" / "finish.flag").read_text()) == first
    assert flag(bench.results()) != first


def test_a_changed_blueprint_is_a_new_experiment(bench: Bench) -> None:
    bench.run(bench.blueprint("echo one"))

    bench.run(bench.blueprint("echo two"))

    assert "two" in bench.results().log(1).read_text()
    assert (bench.results().previous / "1" / "result.md").is_file()


def test_an_invalid_blueprint_leaves_its_faults_and_runs_when_they_are_gone(bench: Bench) -> None:
    source = bench.blueprint("touch ran")
    (bench.code / "config.yaml").unlink()

    assert bench.run(source).exit_code == 2
    assert_documents(bench.results(), outcome="invalid", reason="invalid")
    assert "line 5: error: [exp_yaml_path] does not exist" in bench.results().result.read_text("utf-8")
    assert not (bench.code / "ran").exists()

    (bench.code / "config.yaml").write_text("a: 1\n")
    assert bench.run(source).exit_code == 0


def test_results_of_another_blueprint_are_not_overwritten(bench: Bench) -> None:
    shared = bench.root / "results" / "shared"
    bench.run(bench.blueprint("echo one", name="first", results=shared))
    before = (shared / "result.md").read_bytes()

    ran = bench.run(bench.blueprint("echo two", name="second", results=shared))

    assert ran.exit_code == 2
    assert (shared / "result.md").read_bytes() == before


def test_experiments_of_one_folder_are_compared(bench: Bench) -> None:
    for name, value in (("a", 0.25), ("b", 0.75)):
        bench.run(bench.blueprint(f"echo \"{{'step': 1, 'mean_reward': {value}}}\"", name=name))

    text = bench.results("b").result.read_text("utf-8")
    assert "| a.md | succeeded |" in text
    assert "0.25 (+0.5 here)" in text


def test_files_run_one_after_another_and_the_highest_exit_code_counts(bench: Bench) -> None:
    good = bench.blueprint("date +%s%N > first; sleep 0.3; date +%s%N > first_end", name="a")
    bad = bench.blueprint("date +%s%N > second; exit 4", name="b")

    code, out, _ = bench.call("blueprint", "run", good, bad, "--json")

    assert code == 1
    assert [(one["outcome"], one["exit_code"]) for one in json.loads(out)] == [
        ("succeeded", 0),
        ("failed", 1),
    ]
    assert int((bench.code / "first_end").read_text()) < int((bench.code / "second").read_text())


def test_side_by_side_each_gets_its_gpu(bench: Bench) -> None:
    def waits_for(other: int, *, own: int) -> str:
        look = f"for i in $(seq 100); do [ -e {other} ] && break; sleep 0.1; done; [ -e {other} ]"
        return f"echo GPU=$CUDA_VISIBLE_DEVICES; touch {own}; {look}"

    sources = [bench.blueprint(waits_for(1 - n, own=n), name=str(n)) for n in (0, 1)]

    ran = run_batch(sources, home=bench.home, setting=bench.setting(), gpus=("3", "5"), done=lambda one: None)

    assert [one.exit_code for one in ran] == [0, 0]
    logs = "".join(bench.results(str(n)).log(1).read_text() for n in (0, 1))
    assert "GPU=3" in logs
    assert "GPU=5" in logs


class Scripted:
    """A repairer that knows one answer, as one with a model behind it would."""

    name = "scripted"

    def __init__(self) -> None:
        self.cases: list[RepairCase] = []

    def propose(self, case: RepairCase) -> Repair | None:
        self.cases.append(case)
        variation = Variation(
            command=case.variation.command.replace("exit 9", "exit 0"), yaml=case.variation.yaml
        )
        return Repair(by=self.name, why="exit 9 is wrong", changes=("exit 0",), variation=variation)


def test_another_repairer_is_asked_where_the_rules_know_nothing(bench: Bench) -> None:
    scripted = Scripted()
    source = bench.blueprint("echo the reason; exit 9")

    ran = bench.run(source, repairers=(scripted,))

    assert ran.exit_code == 0
    [case] = scripted.cases
    assert "the reason" in case.log_tail
    assert case.yaml_text == "lr: 0.1\n"
    assert "repair by `scripted`" in bench.results().trial_and_error.read_text("utf-8")


def test_repairs_are_bounded(bench: Bench) -> None:
    class Hopeful(Scripted):
        def propose(self, case: RepairCase) -> Repair | None:
            return Repair(by="hope", why="hope", changes=("nothing",), variation=case.variation)

    policy = FAST.model_copy(update={"max_repairs": 2})

    ran = bench.run(bench.blueprint("echo x >> starts; exit 9"), repairers=(Hopeful(),), policy=policy)

    assert ran.exit_code == 1
    assert (bench.code / "starts").read_text() == "x\n" * 3
    assert_documents(bench.results(), outcome="failed", reason="unknown")


def test_a_killed_wrapper_takes_all_with_it_and_is_started_again_once(bench: Bench) -> None:
    marker = f"4{time.time_ns() % 10**8}"
    source = bench.blueprint(
        f"echo x >> starts; (setsid sleep {marker} &); [ -e again ] || sleep {marker}; touch again"
    )
    executor = bench.posttrain("blueprint", "run", source)
    wait_until(lambda: len(running(f"sleep\0{marker}")) == 2)
    (bench.code / "again").touch()

    status = json.loads(bench.state_paths(source).attempt(1).status.read_text())
    os.kill(status["wrapper_pid"], signal.SIGKILL)

    assert executor.wait(60) == 0
    executor.communicate()
    report = assert_documents(bench.results(), outcome="succeeded", reason="finished")
    assert [attempt["ending"]["cause"] for attempt in report["attempts"]] == ["lost", "exit"]
    assert running(f"sleep\0{marker}") == []


def test_two_blueprints_with_one_result_folder_do_not_mix(bench: Bench) -> None:
    shared = bench.root / "results" / "shared"
    first = bench.blueprint("sleep 2", name="first", results=shared)
    second = bench.blueprint("sleep 2", name="second", results=shared)
    executor = bench.posttrain("blueprint", "run", first)
    bench.session(first)

    assert bench.run(second).exit_code == 2

    executor.communicate(timeout=30)
    assert flag(ResultPaths(shared))["blueprint"] == str(first)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


SERVER = (
    "import http.server, sys; print('listening soon', flush=True); "
    "address = ('127.0.0.1', int(sys.argv[1])); "
    "http.server.HTTPServer(address, http.server.SimpleHTTPRequestHandler).serve_forever()"
)
ASK = "import sys, urllib.request; print(urllib.request.urlopen(f'http://127.0.0.1:{sys.argv[1]}/').status)"


@pytest.mark.parametrize(
    "ready",
    [
        "http://127.0.0.1:{port}/",
        pytest.param("port {port}", marks=pytest.mark.slow),
        pytest.param("log: listening s\\w+", marks=pytest.mark.slow),
    ],
)
def test_a_service_is_started_before_and_stopped_after(ready: str, bench: Bench) -> None:
    port = free_port()
    bench.script(SERVER, name="server.py")
    bench.script(f"import time\nif 'log' in {ready!r}: time.sleep(1)\n{ASK}", name="ask.py")
    ready = ready.format(port=port)
    more = f"8. [exp_service_command] `python server.py {port}`\n9. [exp_service_ready] {ready}\n"

    ran = bench.run(bench.blueprint(f"python ask.py {port}", more=more))

    assert ran.exit_code == 0
    assert "the service is ready" in events(bench.results())
    assert running(f"server.py\0{port}") == []
    assert bench.tmux().sessions() == []


def test_a_service_that_answers_already_is_used_and_left(bench: Bench) -> None:
    port = free_port()
    bench.script(SERVER, name="server.py")
    bench.script(ASK, name="ask.py")
    theirs = bench.tmux().create("theirs", folder=bench.code)
    bench.tmux().type_line(theirs, f"{sys.executable} server.py {port}")
    wait_until(lambda: socket.socket().connect_ex(("127.0.0.1", port)) == 0)
    more = f"8. [exp_service_command] `python server.py {port}`\n9. [exp_service_ready] {port}\n"

    ran = bench.run(bench.blueprint(f"python ask.py {port}", more=more))

    assert ran.exit_code == 0
    assert len(running(f"server.py\0{port}")) == 1
    assert any("will not be stopped" in text for text in events(bench.results()))


def test_a_service_that_ends_fails_the_experiment(bench: Bench) -> None:
    more = "8. [exp_service_command] `exit 3`\n9. [exp_service_ready] 1\n".replace(
        " 1\n", f" {free_port()}\n"
    )

    ran = bench.run(bench.blueprint("touch ran", more=more))

    assert ran.exit_code == 1
    assert_documents(bench.results(), outcome="failed", reason="service_failed")
    assert not (bench.code / "ran").exists()


def test_check_tells_lines_and_fails_on_errors(bench: Bench) -> None:
    source = bench.blueprint("python train.py", limit="8")
    assert bench.call("blueprint", "check", source)[:2] == (
        0,
        f"{source}:12: warning: [exp_max_time] has no unit and is read as hours: 8h\n"
        f"{source}: ok, 1 warning(s)\n",
    )
    (bench.code / "config.yaml").unlink()

    code, out, _ = bench.call("blueprint", "check", source, "--json")

    assert code == 1
    assert [problem["level"] for problem in json.loads(out)[0]["problems"]] == ["error", "warning"]


def test_status_tells_where_experiments_stand(bench: Bench) -> None:
    source = bench.blueprint("echo 'step 5/10'; echo 'loss: 0.25'; sleep 600")
    executor = bench.posttrain("blueprint", "run", source)
    bench.session(source)
    wait_until(lambda: "loss" in _log(bench, source))

    [shown] = json.loads(bench.call("blueprint", "status", source, "--json")[1])
    assert (shown["state"], shown["progress"]["step"], shown["last_value"]) == ("running", 5, "loss 0.25")
    assert "5/10" in bench.call("blueprint", "status")[1]

    assert "stopped (user)" in bench.call("blueprint", "stop", source)[1]
    executor.communicate(timeout=30)
    assert bench.call("blueprint", "stop", source)[0] == 0


def _log(bench: Bench, source: Path) -> str:
    log = bench.state_paths(source).attempt(1).log
    return log.read_text("utf-8") if log.exists() else ""


@pytest.mark.parametrize("command", ["run", "check", "status", "stop"])
def test_a_file_that_is_not_there_is_wrong_use(command: str, bench: Bench) -> None:
    code, _, told = bench.call("blueprint", command, bench.root / "nothing.md")

    assert code == 2
    assert not bench.home.exists()
    assert "nothing.md" in told
    assert "Traceback" not in told


def test_a_kept_session_stays_and_shows_the_output(bench: Bench) -> None:
    source = bench.blueprint("echo on the screen")

    bench.run(source, keep_session=True)

    [session] = bench.tmux().sessions()
    assert session.name.startswith("ajet_")
    wait_until(lambda: "on the screen" in bench.tmux().screen(session))
    assert "on the screen" in bench.state_paths(source).attempt(1).screen.read_text("utf-8")


def test_without_namespaces_the_tree_is_ended_all_the_same(bench: Bench) -> None:
    """With no bwrap on the path the wrapper is a subreaper, and the documents say so."""
    tools = bench.root / "tools"
    tools.mkdir()
    for name in ("bash", "tmux", "sleep", "setsid", "git", "env"):
        found = next(Path(folder) / name for folder in ("/usr/bin", "/bin") if (Path(folder) / name).exists())
        (tools / name).symlink_to(found)
    bench.env["PATH"] = str(tools)
    marker = f"5{time.time_ns() % 10**8}"

    bench.run(bench.blueprint(f"(setsid setsid sleep {marker} &); sleep {marker}", limit="2s"))

    report = assert_documents(bench.results(), outcome="timeout", reason="time_limit")
    assert report["kill_mode"] == "best-effort"
    assert running(f"sleep\0{marker}") == []
