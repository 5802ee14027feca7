"""Every way in which an experiment can end, with the documents and the flag that it leaves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from blueprints.bench import (
    FAST,
    Bench,
    assert_documents,
    events,
    flag,
    needs_tmux,
    running,
    wait_until,
)

pytestmark = needs_tmux

_METRICS = """
for step in range(3):
    print({"global_steps": step, "pass_n": 1, "total_tasks": 100, "task_pass_rate@1": 0.2 + 0.2 * step,
           "mean_reward": 0.2 + 0.2 * step, "std_reward": 0.4})
"""


def test_success_leaves_documents_figure_and_flag(bench: Bench) -> None:
    bench.script(_METRICS)
    source = bench.blueprint("python train.py")

    ran = bench.run(source)

    assert ran.exit_code == 0
    results = bench.results()
    report = assert_documents(results, outcome="succeeded", reason="finished")
    assert [row["values"]["mean_reward"] for row in report["evaluations"]] == pytest.approx([0.2, 0.4, 0.6])
    assert results.curve.read_bytes().startswith(b"\x89PNG")
    assert "![evaluations over steps](curve.png)" in results.result.read_text("utf-8")
    assert bench.tmux().sessions() == []


def test_failure_that_a_repair_helps(bench: Bench) -> None:
    bench.script("open('out/deep/log.txt', 'w').write('x'); print('trained')")
    source = bench.blueprint("python train.py")

    ran = bench.run(source)

    assert ran.exit_code == 0
    report = assert_documents(bench.results(), outcome="succeeded", reason="finished")
    assert [attempt["ending"]["exit_code"] for attempt in report["attempts"]] == [1, 0]
    trial = bench.results().trial_and_error.read_text("utf-8")
    assert "missing_folder" in trial
    assert f"made {bench.code}/out/deep" in trial
    assert "not of the blueprint as written" in bench.results().result.read_text("utf-8")


def test_failure_beyond_repair(bench: Bench) -> None:
    bench.script("raise KeyError('no such reward function')")
    source = bench.blueprint("python train.py")

    ran = bench.run(source)

    assert ran.exit_code == 1
    report = assert_documents(bench.results(), outcome="failed", reason="traceback")
    assert report["exit_code"] == 1
    assert "KeyError: 'no such reward function'" in bench.results().result.read_text("utf-8")
    assert "no repair was made" in bench.results().trial_and_error.read_text("utf-8")


def test_time_limit_ends_the_whole_tree(bench: Bench) -> None:
    marker = f"tree-{bench.root.name}"
    bench.script(
        "import os, signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"loop = \"trap '' TERM HUP; while :; do sleep 1; done # {marker}\"\n"
        "for _ in range(3): subprocess.Popen(['bash', '-c', loop], start_new_session=True)\n"
        "print('up', flush=True)\n"
        "time.sleep(600)\n"
    )
    source = bench.blueprint("python train.py", limit="2s")

    ran = bench.run(source)

    state = bench.state(source)
    ending = state.attempt.ending
    assert ending is not None
    assert ran.exit_code == 0
    assert_documents(bench.results(), outcome="timeout", reason="time_limit")
    assert ending.ended_at - state.deadline < 15.0
    assert running(marker) == []


def test_command_that_ends_at_once(bench: Bench) -> None:
    ran = bench.run(bench.blueprint("true"))

    assert ran.exit_code == 0
    assert_documents(bench.results(), outcome="succeeded", reason="finished")
    assert "check that the command does what is meant" in bench.results().result.read_text("utf-8")


def test_command_that_does_not_exist(bench: Bench) -> None:
    ran = bench.run(bench.blueprint("no-such-trainer --conf config.yaml"))

    assert ran.exit_code == 1
    assert flag(bench.results())["exit_code"] == 127


def test_work_left_to_a_daemon_is_ended_and_not_called_success(bench: Bench) -> None:
    marker = f"daemon-{bench.root.name}"
    source = bench.blueprint(f"(setsid bash -c 'while :; do :; done # {marker}' &) ; echo started")

    ran = bench.run(source, policy=FAST.model_copy(update={"linger_s": 1.5}))

    assert ran.exit_code == 1
    report = assert_documents(bench.results(), outcome="failed", reason="daemonised")
    assert any(marker in name for name in report["leftovers"])
    assert marker in bench.results().result.read_text("utf-8")
    assert running(marker) == []


def test_idle_process_left_behind_is_ended_and_named(bench: Bench) -> None:
    marker = f"7{time.time_ns() % 10**8}"
    source = bench.blueprint(f"setsid sleep {marker} & echo trained")

    ran = bench.run(source)

    assert ran.exit_code == 0
    report = assert_documents(bench.results(), outcome="succeeded", reason="finished")
    assert report["leftovers"] == [f"sleep {marker}"]
    assert running(marker) == []


def test_stuck_command_is_started_again_and_then_given_up(bench: Bench) -> None:
    policy = FAST.model_copy(update={"stuck_after_s": 0.8})

    ran = bench.run(bench.blueprint("echo working; sleep 600"), policy=policy)

    assert ran.exit_code == 1
    report = assert_documents(bench.results(), outcome="failed", reason="stuck")
    assert len(report["attempts"]) == 2
    assert report["attempts"][0]["repair"]["by"] == "again"


def test_nan_is_repaired_by_a_lower_learning_rate(bench: Bench) -> None:
    bench.script(
        "import sys, time\n"
        "lr = float(open(sys.argv[1]).read().split('lr:')[1].split()[0])\n"
        "for step in range(100):\n"
        "    print({'loss': float('nan') if lr > 0.05 else 0.5 / (step + 1), 'step': step}, flush=True)\n"
        "    if lr > 0.05: time.sleep(0.1)\n"
    )

    ran = bench.run(bench.blueprint("python train.py config.yaml"))

    assert ran.exit_code == 0
    report = assert_documents(bench.results(), outcome="succeeded", reason="finished")
    assert report["attempts"][0]["finding"]["fault"] == "nan"
    assert "lr: 0.03" in (bench.results().repair(1) / "config.repair-1.yaml").read_text("utf-8")
    assert (bench.code / "config.yaml").read_text("utf-8") == "lr: 0.1\n"


def test_nan_without_a_knob_is_unrepairable(bench: Bench) -> None:
    bench.script("import time\nwhile True: print('loss: nan', flush=True); time.sleep(0.05)")

    ran = bench.run(bench.blueprint("python train.py", yaml="model: x\n"))

    assert ran.exit_code == 1
    report = assert_documents(bench.results(), outcome="failed", reason="nan")
    assert len(report["attempts"]) == 1


def test_plateau_ends_a_run_as_succeeded(bench: Bench) -> None:
    bench.script(
        "import time\n"
        "for step in range(1000):\n"
        "    print({'global_steps': step, 'total_tasks': 100, 'task_pass_rate@1': 0.5, 'mean_reward': 0.5,"
        " 'std_reward': 0.4}, flush=True)\n"
        "    time.sleep(0.1)\n"
    )

    ran = bench.run(bench.blueprint("python train.py", limit="3s"))

    assert ran.exit_code == 0
    report = assert_documents(bench.results(), outcome="succeeded", reason="plateau")
    assert report["duration_s"] >= 1.5


def test_killed_tmux_server_ends_the_experiment(bench: Bench) -> None:
    marker = f"8{time.time_ns() % 10**8}"
    source = bench.blueprint(f"sleep {marker}")
    process = bench.posttrain("blueprint", "run", source)
    wait_until(lambda: running(f"sleep\0{marker}"))

    subprocess.run(["tmux", "kill-server"], env=bench.env, check=True)

    assert process.wait(30) == 1
    process.communicate()
    assert_documents(bench.results(), outcome="stopped", reason="session_lost")
    assert running(f"sleep\0{marker}") == []


def test_renamed_session_changes_nothing(bench: Bench) -> None:
    source = bench.blueprint("sleep 3; echo done")
    process = bench.posttrain("blueprint", "run", source)
    session = bench.session(source)

    subprocess.run(["tmux", "rename-session", "-t", session.id, "my own name"], env=bench.env, check=True)

    assert bench.call("wait", "my own name", "0.1")[0] == 0
    assert process.wait(30) == 0
    process.communicate()
    assert_documents(bench.results(), outcome="succeeded", reason="finished")
    assert bench.tmux().sessions() == []


def test_killed_executor_is_started_again_and_goes_on(bench: Bench) -> None:
    source = bench.blueprint("echo first >> starts; sleep 3; echo done")
    process = bench.posttrain("blueprint", "run", source)
    session = bench.session(source)
    process.kill()
    process.communicate()

    code, _, told = bench.call("blueprint", "run", source)

    assert code == 0
    assert "goes on" in told
    report = assert_documents(bench.results(), outcome="succeeded", reason="finished")
    assert len(report["attempts"]) == 1
    assert (bench.code / "starts").read_text() == "first\n"
    assert bench.state(source).session == session


@pytest.mark.slow
def test_experiment_that_ended_while_no_executor_lived_is_reported(bench: Bench) -> None:
    source = bench.blueprint("sleep 1; exit 5")
    process = bench.posttrain("blueprint", "run", source)
    bench.session(source)
    process.kill()
    process.communicate()
    time.sleep(1.5)

    assert bench.call("blueprint", "run", source)[0] == 1
    assert flag(bench.results())["exit_code"] == 5


def test_limit_holds_without_an_executor(bench: Bench) -> None:
    marker = f"9{time.time_ns() % 10**8}"
    source = bench.blueprint(f"sleep {marker}", limit="4s")
    process = bench.posttrain("blueprint", "run", source)
    wait_until(lambda: running(f"sleep\0{marker}"))
    process.kill()
    process.communicate()

    wait_until(lambda: not running(f"sleep\0{marker}"), seconds=19)


def test_second_executor_refuses(bench: Bench) -> None:
    source = bench.blueprint("sleep 2")
    first = bench.posttrain("blueprint", "run", source)
    bench.session(source)

    second = bench.run(source)

    assert second.exit_code == 2
    assert "another executor" in str(second.error)
    assert first.wait(30) == 0
    first.communicate()


def test_interrupted_executor_leaves_the_experiment_running(bench: Bench) -> None:
    source = bench.blueprint("sleep 2; echo done")
    process = bench.posttrain("blueprint", "run", source)
    bench.session(source)

    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=30)

    assert process.returncode == 130
    assert "goes on" in told
    assert bench.call("blueprint", "run", source)[0] == 0
    assert_documents(bench.results(), outcome="succeeded", reason="finished")


def test_unwritable_result_folder_is_invalid_and_nothing_runs(bench: Bench) -> None:
    source = bench.blueprint("touch ran", results=bench.root / "results" / "x")
    (bench.root / "results").write_text("a file where the folder should be")

    ran = bench.run(source)

    assert ran.exit_code == 2
    assert not (bench.code / "ran").exists()
    assert_documents(bench.state_paths(source).documents, outcome="invalid", reason="invalid")


def test_result_folder_that_becomes_unwritable_is_named_with_the_other_place(bench: Bench) -> None:
    results = bench.results()
    source = bench.blueprint(f"rm -rf {results.root}; echo x > {results.root}; echo trained")
    results.root.mkdir(parents=True)

    code, _, told = bench.call("blueprint", "run", source)

    assert code == 2
    assert str(results.root) in told
    assert str(bench.state_paths(source).root) in told
    assert_documents(bench.state_paths(source).documents, outcome="succeeded", reason="finished")


@pytest.mark.skipif(os.getuid() != 0, reason="mounts read-only, which needs root")
def test_read_only_mount_as_result_folder_is_invalid(bench: Bench) -> None:
    results = bench.results()
    results.root.mkdir(parents=True)
    source = bench.blueprint("touch ran")
    inside = ["bwrap", "--dev-bind", "/", "/", "--ro-bind", str(results.root), str(results.root)]
    argv = [*inside, sys.executable, "-m", "posttrain", "blueprint", "run", str(source)]

    done = subprocess.run(argv, env=bench.env, capture_output=True, text=True, check=False, timeout=60)

    assert done.returncode == 2
    assert list(results.root.iterdir()) == []
    assert flag(bench.state_paths(source).documents)["outcome"] == "invalid"


def test_stop_by_user(bench: Bench) -> None:
    marker = f"6{time.time_ns() % 10**8}"
    source = bench.blueprint(f"sleep {marker}")
    process = bench.posttrain("blueprint", "run", source)
    wait_until(lambda: running(f"sleep\0{marker}"))

    code, out, _ = bench.call("blueprint", "stop", source)

    assert code == 0
    assert "stopped (user)" in out
    assert process.wait(30) == 1
    process.communicate()
    assert_documents(bench.results(), outcome="stopped", reason="user")
    assert running(f"sleep\0{marker}") == []


def test_stop_without_an_executor_writes_the_documents_itself(bench: Bench) -> None:
    source = bench.blueprint("sleep 600")
    process = bench.posttrain("blueprint", "run", source)
    bench.session(source)
    process.kill()
    process.communicate()

    assert bench.call("blueprint", "stop", source)[0] == 0
    assert_documents(bench.results(), outcome="stopped", reason="user")
    assert "asked to stop" in bench.results().log(1).read_text("utf-8")


@pytest.mark.slow
def test_without_tmux_the_same_documents_appear(bench: Bench) -> None:
    ran = bench.run(bench.blueprint("echo trained"), tmux=False)

    assert ran.exit_code == 0
    assert_documents(bench.results(), outcome="succeeded", reason="finished")
    assert any("without a session" in text for text in events(bench.results()))
