"""Trees to start and a way to see what is left of them."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from posttrain.infra.levels import Levels, probe_levels
from posttrain.infra.processes import Command, Spawner

PATH = os.environ["PATH"]
HOSTILE = Path(__file__).parent / "hostile"


@dataclass(frozen=True)
class Mark:
    """A variable that every process of a test's tree inherits."""

    value: str

    def survivors(self) -> list[int]:
        """Living processes that carry the mark; zombies have no environment."""
        needle = f"POSTTRAIN_TEST_MARK={self.value}".encode()
        found = []
        for folder in Path("/proc").iterdir():
            try:
                if folder.name.isdigit() and needle in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
            except OSError:
                continue
        return found

    def gone_within(self, seconds: float) -> bool:
        """Whether no process carries the mark after at most `seconds`."""
        deadline = time.monotonic() + seconds
        while self.survivors():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True


@pytest.fixture
def mark() -> Mark:
    return Mark(uuid.uuid4().hex)


@pytest.fixture(scope="session")
def levels() -> Levels:
    with Spawner() as spawner:
        return probe_levels(spawner)


@pytest.fixture(params=["namespace", "best-effort"])
def spawner(request: pytest.FixtureRequest, levels: Levels) -> Iterator[Spawner]:
    if request.param == "namespace" and levels.kill_mode != "namespace":
        pytest.skip("no namespace to be had")
    with Spawner(kill_mode=request.param) as spawner:
        yield spawner


@dataclass(frozen=True)
class Commands:
    """Builds commands that carry the test's mark."""

    folder: Path
    mark: Mark

    @property
    def env(self) -> dict[str, str]:
        return {"PATH": PATH, "HOME": str(self.folder), "POSTTRAIN_TEST_MARK": self.mark.value}

    def bash(self, script: str, **settings: object) -> Command:
        return self.argv("bash", "-c", script, **settings)

    def hostile(self, kind: str, **settings: object) -> Command:
        """A script of hostile/, which makes the file `ready` once its tree stands."""
        return self.argv("bash", str(HOSTILE / f"{kind}.sh"), **settings)

    def argv(self, *argv: str, **settings: object) -> Command:
        extra = settings.pop("env", {})
        return Command(
            argv=argv,
            cwd=self.folder,
            env={**self.env, **extra},  # type: ignore[dict-item]
            **{"stdout": self.folder / "log", **settings},  # type: ignore[arg-type]
        )

    def wait_for(self, name: str, seconds: float = 20.0) -> str:
        """The content of a file that the tree writes, once it is there and not empty."""
        deadline = time.monotonic() + seconds
        path = self.folder / name
        while time.monotonic() < deadline:
            if path.exists() and (text := path.read_text()):
                return text
            time.sleep(0.01)
        raise AssertionError(f"{name} did not appear; log: {(self.folder / 'log').read_text()}")


@pytest.fixture
def commands(tmp_path: Path, mark: Mark) -> Commands:
    return Commands(tmp_path, mark)
