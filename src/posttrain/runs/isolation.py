"""What the agent of one run sees and as whom it runs."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from posttrain.agents.programs import Program
from posttrain.core.errors import UsageError
from posttrain.core.runs import DEFAULT_PORT, Isolation, Network, RunRequest
from posttrain.core.specs import AgentSpec
from posttrain.grading.server import bind_tcp, bind_unix
from posttrain.grading.views import WorkerViews
from posttrain.infra.levels import probe_levels
from posttrain.infra.processes import Limits, Spawner
from posttrain.infra.sandbox import Bind, Relay, View, choose_uid, hand_over, require_readable
from posttrain.runs.lab import Lab
from posttrain.runs.workspace import Mount

AGENT_HOME = Path("/home/agent")
"""Empty and writable in an isolated view."""
AGENT_TMP = Path("/tmp")  # noqa: S108 - the view's own
_PID_MAX = Path("/proc/sys/kernel/pid_max")


@dataclass(frozen=True)
class Doorway:
    """Where the grading server listens and how the agent gets there."""

    listener: socket.socket
    port: int
    """The port in GRADING_SERVER_URL, on the agent's own loopback."""
    path: Path | None
    """The unix socket behind a relay; None where the agent connects by TCP."""
    note: str | None = None


def resolve_isolation(request: RunRequest, spawner: Spawner) -> Isolation:
    """The level of a run; UsageError if the one asked for cannot be had here."""
    if request.sandbox == "bwrap":
        why_not = probe_levels(spawner).why_no_bwrap
        if why_not is not None:
            raise UsageError(f"--sandbox bwrap: {why_not}; use --sandbox none, or auto for the best there is")
    return "none" if request.sandbox == "none" else best_isolation(spawner)


def best_isolation(spawner: Spawner) -> Isolation:
    """The highest level that works here."""
    return probe_levels(spawner).best


def resolve_network(request: RunRequest, agent: AgentSpec, isolation: Isolation) -> Network:
    """Without isolation nothing keeps an agent from the host's network, whatever its config says."""
    return "host" if isolation == "none" else request.network or agent.network


@contextmanager
def doorway(request: RunRequest, network: Network) -> Iterator[Doorway]:
    """The listening socket of a run's grading server, closed at the end."""
    if network == "grader":
        with tempfile.TemporaryDirectory(prefix="posttrain-") as folder:
            path = Path(folder) / "grader.sock"
            listener = bind_unix(path, mode=0o666)  # its folder is closed to all but us
            with listener:
                yield Doorway(listener, request.port or DEFAULT_PORT, path)
    else:
        listener, note = bind_tcp(request.port, given=request.port_given)
        with listener:
            yield Doorway(listener, int(listener.getsockname()[1]), None, note)


def agent_uid(run_id: str, isolation: Isolation) -> int | None:
    """The user id of an isolated agent under root; None where it runs as we do."""
    return choose_uid(run_id) if isolation == "bwrap" and os.getuid() == 0 else None


def peer_uids(uid: int | None, isolation: Isolation) -> set[int] | None:
    """Whose connections the grading server answers; None where everybody is the same user."""
    if isolation == "none":
        return None
    return {os.getuid() if uid is None else uid}


def agent_view(
    *,
    isolation: Isolation,
    network: Network,
    uid: int | None,
    door: Doorway,
    workspace: Path,
    mounts: list[Mount],
    agent: AgentSpec,
    programs: Sequence[Program],
    lab: Lab,
) -> View:
    """An allow-list around the workspace, or everything at level none."""
    if isolation == "none":
        return View.host()
    if uid is not None:
        hand_over(workspace, uid)
    for mount in mounts:
        require_readable(mount.source, uid)
    return View.allow_list(
        home=AGENT_HOME,
        uid=uid,
        network=network,
        relay=None if door.path is None else Relay(port=door.port, socket=door.path),
        writable=[workspace],
        readable=[
            agent.folder,
            *(Path(path) for path in agent.bind),
            *(path for program in programs for path in program.shown),
        ],
        binds=[Bind(mount.source, mount.target) for mount in mounts],
        hidden=_hidden(lab),
    )


def agent_limits(isolation: Isolation) -> Limits:
    """A fork bomb of an agent with a uid of its own leaves three of four process ids to everybody else."""
    if isolation == "none":
        return Limits()
    return Limits(processes=int(_PID_MAX.read_text("ascii")) // 4)


def worker_views(run_id: str, isolation: Isolation, lab: Lab) -> WorkerViews:
    """What this run's engine workers and scorers see; under root they are neither root nor the agent."""
    agent = agent_uid(run_id, isolation)
    uid = None if agent is None else choose_uid(f"{run_id}/grading", besides=[agent])
    return WorkerViews(isolation, uid, tuple(_hidden(lab)))


def _hidden(lab: Lab) -> list[Path]:
    return [lab.paths.home, lab.launch_folder, *lab.sources.data, *lab.sources.adopted]
