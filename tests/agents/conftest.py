"""A workspace and a grading server of a few lines, for agents that are run on their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from posttrain.agents.environment import Contract, agent_environment
from posttrain.core.specs import AgentSpec


class SmallServer(ThreadingHTTPServer):
    """Answers like the grading server; keeps what it was sent."""

    def __init__(self, seconds: float = 600.0) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.submissions: list[dict[str, Any]] = []
        self.agents: list[str] = []
        self.improvements: list[float] = []
        """What the next grades say; 10.0 when used up."""
        self.deadline = time.time() + seconds

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/run/secret"


class _Handler(BaseHTTPRequestHandler):
    server: SmallServer

    def do_GET(self) -> None:
        if self.path.endswith("/time"):
            self._answer(200, {"now": time.time(), "remaining": self.server.deadline - time.time()})
        elif "/submissions/" in self.path:
            self._answer(200, self._grade(int(self.path.rsplit("/", 1)[1])))
        else:
            self._answer(404, {"error": "use $GRADING_SERVER_URL"})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.submissions.append(body)
        self.server.agents.append(self.headers["User-Agent"])
        number = len(self.server.submissions)
        if body.get("wait", True):
            self._answer(200, self._grade(number))
        else:
            self._answer(202, {"submission_id": number, "status": "queued", "position": 1})

    def _grade(self, number: int) -> dict[str, Any]:
        told = self.server.improvements
        improvement = told[number - 1] if number <= len(told) else 10.0
        return {
            "submission_id": number,
            "status": "graded",
            "stage": "done",
            "score": 50.0 + improvement,
            "improvement": improvement,
            "improvement_ci95": [improvement - 1, improvement + 1],
            "elapsed_seconds": 1.0,
        }

    def _answer(self, status: int, answer: dict[str, Any]) -> None:
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Tests need no access log."""


class Bench:
    """Runs an agent folder as the lab would, without the lab."""

    def __init__(self, workspace: Path, server: SmallServer) -> None:
        self.workspace = workspace
        self.server = server
        self.model = workspace / "models" / "tiny"
        for folder in ("code", "output", "data", "reports", "models/tiny"):
            (workspace / folder).mkdir(parents=True)

    def run(
        self, agent: AgentSpec, *, host: dict[str, str] | None = None, timeout_s: float = 120.0
    ) -> subprocess.CompletedProcess[str]:
        contract = Contract(
            task="boolean",
            base_model="tiny",
            workspace=self.workspace,
            model_path=self.model,
            data_path=self.workspace / "data",
            output_dir=self.workspace / "output",
            grading_server_url=self.server.url,
            timeout_s=self.server.deadline - time.time(),
            deadline=self.server.deadline,
            run_id="run",
            seed=0,
            python=Path(sys.executable),
        )
        env = agent_environment(agent, contract, host=host or dict(os.environ), network=agent.network)
        return subprocess.run(
            ["bash", str(agent.folder / agent.start)],
            cwd=self.workspace,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout_s,
            check=False,
        )


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with SmallServer() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield Bench(tmp_path / "workspace", server)
        server.shutdown()
        thread.join()
