"""What a checkpoint could do that took its engine worker over, or an answer its scorer."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from posttrain.core.errors import UsageError
from posttrain.core.evaluation import ScoringJob
from posttrain.core.paths import LabPaths
from posttrain.core.scores import Item, Metric, Output
from posttrain.grading.server import GradingServer, bind_tcp
from posttrain.grading.views import WorkerViews
from posttrain.infra.levels import probe_levels
from posttrain.infra.processes import Command, Spawner
from posttrain.infra.sandbox import PACKAGE, View, choose_uid

SECRET = "gold answer"
PROGRAM = """
import json, os, socket, sys
from pathlib import Path
asked, found = json.loads(sys.argv[1]), {}
for name, path in asked["files"].items():
    try:
        found[name] = asked["secret"] in Path(path).read_text("utf-8", "replace")
    except OSError:
        found[name] = False
    try:
        os.close(os.open(path, os.O_WRONLY))
        found["write " + name] = True
    except OSError:
        found["write " + name] = False
try:
    socket.create_connection(("127.0.0.1", asked["port"]), timeout=2).close()
    found["network"] = True
except OSError:
    found["network"] = False
found["uid"] = os.getuid()
status = Path("/proc/self/status").read_text()
found["capabilities"] = status.split("CapEff:")[1].split()[0]
print(json.dumps(found))
"""


@dataclass(frozen=True)
class Place:
    """A lab with one submission, and somebody who listens on the loopback."""

    files: dict[str, str]
    base: Path
    submission: Path
    task: Path
    home: Path
    port: int

    def job(self, evaluator: str) -> ScoringJob:
        item = Item(id="i", fields={"question": "q", "answer": "a"})
        return ScoringJob(
            evaluator=evaluator,
            folder=str(self.task),
            metric=Metric(),
            items=(item,),
            outputs=(Output(text="a", tokens=1),),
        )


@pytest.fixture
def place(lab: LabPaths) -> Iterator[Place]:
    def written(path: Path) -> str:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(SECRET)
        return str(path)

    run = lab.run("boolean", "1_toy")
    files = {
        "base": written(lab.model("org/base") / "config.json"),
        "submission": written(run.submission(1) / "config.json"),
        "task": written(lab.benchmarks / "mine" / "eval.py"),
        "private split": written(lab.dataset("boolean") / "private" / "test.jsonl"),
        "ledger": written(run.ledger),
        "items": written(run.grading_of("baseline-test") / "items.jsonl"),
        "other submission": written(run.submission(2) / "config.json"),
        "workspace": written(run.workspace.code / "train.py"),
        "other task": written(lab.benchmarks / "other" / "eval.py"),
    }
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield Place(
            files,
            base=lab.model("org/base"),
            submission=run.submission(1),
            task=lab.benchmarks / "mine",
            home=lab.home,
            port=server.getsockname()[1],
        )


@pytest.fixture
def views(spawner: Spawner, lab: LabPaths) -> WorkerViews:
    why_not = probe_levels(spawner).why_no_bwrap
    if why_not:
        pytest.skip(why_not)
    return WorkerViews("bwrap", choose_uid("worker") if os.getuid() == 0 else None, (lab.home,))


def program(spawner: Spawner, place: Place, view: View, *, secret: str = SECRET) -> dict[str, object]:
    asked = {"files": place.files, "secret": secret, "port": place.port}
    command = Command(
        argv=[sys.executable, "-P", "-c", PROGRAM, json.dumps(asked)],
        cwd=Path("/"),
        env={"PATH": os.defpath},
        view=view,
    )
    with spawner.spawn(command, name="program") as child:
        assert child.stdout is not None
        found: dict[str, object] = json.loads(child.stdout.read())
        return found


def granted(found: dict[str, object]) -> set[str]:
    return {name for name, value in found.items() if value is True}


def test_an_engine_worker_sees_the_base_and_the_submission_alone(
    spawner: Spawner, place: Place, views: WorkerViews
) -> None:
    found = program(spawner, place, views.engine(place.base, place.submission))
    assert granted(found) == {"base", "submission"}
    assert found["capabilities"] == "0" * 16
    assert found["uid"] != 0 or os.getuid() != 0


@pytest.mark.skipif(os.getuid() != 0, reason="an ordinary user's workers run as that user")
def test_a_base_that_is_closed_to_others_is_named_before_anything_starts(
    place: Place, views: WorkerViews
) -> None:
    Path(place.files["base"]).chmod(0o600)
    with pytest.raises(UsageError, match=r"config.json: closed to other users.*chmod"):
        views.engine(place.base)


def test_the_baselines_worker_sees_no_submission(spawner: Spawner, place: Place, views: WorkerViews) -> None:
    assert granted(program(spawner, place, views.engine(place.base))) == {"base"}


def test_a_worker_that_stays_sees_the_runs_copies_and_nothing_else_of_it(
    spawner: Spawner, place: Place, views: WorkerViews
) -> None:
    found = program(spawner, place, views.engine(place.base, place.submission.parent))
    assert granted(found) == {"base", "submission", "other submission"}


def test_a_scorer_sees_its_task_alone(spawner: Spawner, place: Place, views: WorkerViews) -> None:
    assert granted(program(spawner, place, views.scorer(place.job("own")))) == {"task"}


def test_a_scorer_that_shuts_programs_in_has_no_network_either(
    spawner: Spawner, place: Place, views: WorkerViews
) -> None:
    found = program(spawner, place, views.scorer(place.job("code")))
    assert "network" not in granted(found)


def test_without_isolation_a_worker_sees_everything(spawner: Spawner, place: Place) -> None:
    found = program(spawner, place, WorkerViews().engine(place.base, place.submission))
    assert granted(found) >= {"private split", "ledger", "items", "write ledger", "network"}


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives workers another user id")
def test_a_runs_agent_and_its_workers_are_different_users() -> None:
    agent = choose_uid("run")
    assert choose_uid("run", besides=[agent]) != agent


def test_generators_of_hidden_items_are_covered_for_workers(
    spawner: Spawner, place: Place, views: WorkerViews
) -> None:
    files = {"data": str(PACKAGE / "benchmarks" / "boolean" / "data.py")}
    asked = replace(place, files=files)
    assert granted(program(spawner, asked, WorkerViews().engine(place.base), secret="def ")) >= {"data"}
    assert granted(program(spawner, asked, views.engine(place.base), secret="def ")) == set()


# --- who is at the other end of a connection (C7)


async def hello(scope: object, receive: object, send: object) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})  # type: ignore[operator]
    await send({"type": "http.response.body", "body": b"{}"})  # type: ignore[operator]


@pytest.mark.parametrize(("uids", "status"), [({os.getuid() + 1}, 403), ({os.getuid()}, 200), (None, 200)])
def test_another_user_of_the_host_is_turned_away(uids: set[int] | None, status: int) -> None:
    import http.client

    listener, _ = bind_tcp(0, given=True)
    with GradingServer(hello, [listener], peer_uids=uids):
        connection = http.client.HTTPConnection("127.0.0.1", listener.getsockname()[1], timeout=10)
        connection.request("GET", "/")
        assert connection.getresponse().status == status
        connection.close()
