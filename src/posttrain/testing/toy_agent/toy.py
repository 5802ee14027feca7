# ruff: noqa: T201, S310, ARG001 - a program of its own that talks to one loopback server
"""An agent that does what a list of steps says: well, badly or maliciously. Standard library only.

    python toy.py steps.json

A step is an object with `do`, the name of a function below, and that function's arguments. Paths are
relative to the workspace. Answers of the grading server are appended to code/answers.jsonl, process
ids of everything left running to code/pids.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from base64 import b64decode
from pathlib import Path
from typing import Any

WORKSPACE = Path(os.environ["WORKSPACE"])
URL = os.environ["GRADING_SERVER_URL"]


def say(text: str) -> None:
    print(text, flush=True)


def write(to: str, text: str | None = None, data: Any = None, base64: str | None = None) -> None:
    """A file with `text`, with the bytes that `base64` stands for, or with `data` as JSON."""
    path = WORKSPACE / to
    path.parent.mkdir(parents=True, exist_ok=True)
    if base64 is not None:
        path.write_bytes(b64decode(base64))
    else:
        path.write_text(json.dumps(data, ensure_ascii=False) if text is None else text, "utf-8")


def append(to: str, text: str) -> None:
    path = WORKSPACE / to
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(text)


def copy_base(to: str) -> None:
    """The base model's files, writable."""
    target = WORKSPACE / to
    target.mkdir(parents=True, exist_ok=True)
    for source in Path(os.environ["MODEL_PATH"]).rglob("*"):
        if source.is_file():
            copied = target / source.relative_to(os.environ["MODEL_PATH"])
            copied.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, copied)


def copy(source: str, to: str) -> None:
    shutil.copytree(WORKSPACE / source, WORKSPACE / to)


def link(source: str, to: str) -> None:
    """A symbolic link at `to` that points to `source`, taken as it stands."""
    (WORKSPACE / to).parent.mkdir(parents=True, exist_ok=True)
    (WORKSPACE / to).symlink_to(source)


def remove(path: str) -> None:
    target = WORKSPACE / path
    if target.is_dir() and not target.is_symlink():
        shutil.rmtree(target)
    else:
        target.unlink()


def submit(retries: int = 0, **body: Any) -> None:
    """POST /submit; a 429 is tried again `retries` times after its Retry-After."""
    for attempt in range(retries + 1):
        status, answer, headers = request("POST", "/submit", body)
        record({"request": body, "http": status, "answer": answer})
        if status != 429 or attempt == retries:
            return
        time.sleep(float(headers.get("Retry-After", "1")))


def submit_and_hang_up(**body: Any) -> None:
    """Send the request and close the connection without reading the answer."""
    address = urllib.parse.urlsplit(URL)
    connection = http.client.HTTPConnection(str(address.hostname), address.port)
    connection.request(
        "POST", f"{address.path}/submit", json.dumps(body), {"Content-Type": "application/json"}
    )
    connection.close()


def get(path: str) -> None:
    """GET an endpoint such as /time."""
    status, answer, _ = request("GET", path)
    record({"request": path, "http": status, "answer": answer})


def post(path: str, body: Any) -> None:
    """POST any JSON to any endpoint."""
    status, answer, _ = request("POST", path, body)
    record({"request": path, "http": status, "answer": answer})


def report(options: list[str] | None = None, **fields: Any) -> None:
    """`posttrain report append` with these fields; what it answers is appended to code/reports.jsonl."""
    command = [sys.executable, "-m", "posttrain", "report", "append", "--from", "-", "--json"]
    done = subprocess.run(
        [*command, *(options or [])], input=json.dumps(fields), capture_output=True, text=True, check=False
    )
    append(
        "code/reports.jsonl",
        json.dumps({"exit": done.returncode, "said": decoded(done.stdout.encode())}) + "\n",
    )
    print(done.stderr, flush=True)


def run(argv: list[str]) -> None:
    """A command in the workspace; its output goes into our own, its failure doesn't end us."""
    done = subprocess.run(argv, cwd=WORKSPACE, check=False)
    print(f"{argv[0]} ended with exit code {done.returncode}", flush=True)


def fifo(to: str) -> None:
    """A named pipe that nobody writes to."""
    path = WORKSPACE / to
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def dump_environment(to: str) -> None:
    write(to, data=dict(os.environ))


def note_pid(pid: int) -> None:
    append("code/pids", f"{pid}\n")


def sleep(seconds: float) -> None:
    time.sleep(seconds)


def work(seconds: float) -> None:
    """Keep a core busy."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


def ignore_sigterm() -> None:
    note_pid(os.getpid())
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def on_sigterm(to: str, seconds: float = 0.0) -> None:
    """Write a file when asked to stop, `seconds` later, and leave."""

    def handler(signum: int, frame: object) -> None:
        time.sleep(seconds)
        write(to, text=signal.Signals(signum).name)
        os._exit(0)

    signal.signal(signal.SIGTERM, handler)


def spawn(seconds: float = 3600.0, ignoring_sigterm: bool = False, new_session: bool = False) -> None:
    """A child that outlives us if nobody ends it."""
    trap = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN);" if ignoring_sigterm else ""
    code = f"{trap}import time; time.sleep({seconds})"
    note_pid(subprocess.Popen([sys.executable, "-c", code], start_new_session=new_session).pid)


def daemonise(seconds: float = 3600.0) -> None:
    """A double-forked process in a session of its own, with the standard streams closed."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    note_pid(os.getpid())
    for descriptor in range(3):
        os.close(descriptor)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(seconds)
    os._exit(0)


def tmux(socket: str = "code/tmux.sock", seconds: float = 3600.0) -> None:
    """A tmux server with a sleeping session."""
    command = ["tmux", "-S", str(WORKSPACE / socket)]
    subprocess.run([*command, "new-session", "-d", "-s", "toy", f"sleep {seconds}"], check=True)
    shown = subprocess.run(
        [*command, "display-message", "-p", "#{pid}"], check=True, capture_output=True, text=True
    )
    note_pid(int(shown.stdout))


def flood(megabytes: float) -> None:
    """That much text on standard output."""
    line = "x" * 1023 + "\n"
    for _ in range(int(megabytes * 1024)):
        sys.stdout.write(line)


def leave(code: int = 0) -> None:
    sys.exit(code)


def crash() -> None:
    raise RuntimeError("the toy agent crashes as it was told")


def kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def parallel(threads: list[list[dict[str, Any]]]) -> None:
    """Several lists of steps at once; goes on when all are through."""
    workers = [threading.Thread(target=follow, args=(steps,)) for steps in threads]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def only_on_resume(steps: list[dict[str, Any]]) -> None:
    """Steps for a second start; ends the agent after them."""
    if os.environ.get("POSTTRAIN_RESUMED"):
        follow(steps)
        sys.exit(0)


def request(method: str, path: str, body: Any = None) -> tuple[int, Any, dict[str, str]]:
    data = None if body is None else json.dumps(body).encode()
    asked = urllib.request.Request(URL + path, data, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(asked) as answer:
            return answer.status, decoded(answer.read()), dict(answer.headers)
    except urllib.error.HTTPError as error:
        return error.code, decoded(error.read()), dict(error.headers)


def decoded(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except ValueError:
        return raw.decode("utf-8", "replace")


_RECORDING = threading.Lock()


def record(entry: dict[str, Any]) -> None:
    with _RECORDING:
        append("code/answers.jsonl", json.dumps(entry, ensure_ascii=False) + "\n")
    print(json.dumps(entry["answer"], ensure_ascii=False), flush=True)


STEPS = {
    step.__name__: step
    for step in (
        say, write, append, copy_base, copy, link, remove, submit, submit_and_hang_up, get, post,
        report, run, fifo, dump_environment, sleep, work, ignore_sigterm, on_sigterm, spawn, daemonise,
        tmux, flood, leave, crash, kill_self, parallel, only_on_resume,
    )
}  # fmt: skip


def follow(steps: list[dict[str, Any]]) -> None:
    for step in steps:
        arguments = dict(step)
        STEPS[arguments.pop("do")](**arguments)


if __name__ == "__main__":
    follow(json.loads(Path(sys.argv[1]).read_text("utf-8")))
