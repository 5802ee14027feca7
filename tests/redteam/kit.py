"""What the hostile agents have in common. Standard library only; a copy lies in each one's folder."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import urllib.parse
from collections.abc import Callable
from pathlib import Path
from typing import Any

WORKSPACE = Path(os.environ["WORKSPACE"])
OUTPUT = Path(os.environ["OUTPUT_DIR"])
BASE = Path(os.environ["MODEL_PATH"])
RUN = WORKSPACE.parent
"""Where an attacker who has read the documentation expects the ledger to lie."""
LAB = RUN.parents[2]
CASE = os.environ["CASE"]
ADDRESS = urllib.parse.urlsplit(os.environ["GRADING_SERVER_URL"])
FOUND: dict[str, Any] = {}


def request(
    method: str, path: str, body: Any = None, *, prefix: str = ADDRESS.path, **headers: str
) -> tuple[int, Any]:
    """The status and what was answered; (0, why) if the connection broke."""
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    connection = http.client.HTTPConnection("127.0.0.1", ADDRESS.port, timeout=120)
    try:
        named = {"Content-Type": "application/json", **{k.replace("_", "-"): v for k, v in headers.items()}}
        connection.request(method, prefix + path, data, named)
        answer = connection.getresponse()
        raw = answer.read()
    except (OSError, http.client.HTTPException) as error:
        return 0, str(error)
    finally:
        connection.close()
    try:
        return answer.status, json.loads(raw)
    except ValueError:
        return answer.status, raw.decode("utf-8", "replace")


def submit(name: str, **more: Any) -> dict[str, Any]:
    """Hand in output/<name>; a 429 is waited for. The answer, with its status as `http`."""
    while True:
        status, answer = request("POST", "/submit", {"model_path": f"output/{name}", **more})
        if status != 429 or not more.get("wait", True) or "used" in answer.get("error", ""):
            return (
                {**answer, "http": status} if isinstance(answer, dict) else {"http": status, "text": answer}
            )


def make(name: str, accuracy: float, *, seed: int = 0, **script: Any) -> Path:
    """A checkpoint of that accuracy under the scripted engine."""
    folder = OUTPUT / name
    shutil.copytree(BASE, folder, dirs_exist_ok=True, copy_function=shutil.copyfile)
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    write_script(folder, accuracy, seed=seed, **script)
    return folder


def write_script(folder: Path, accuracy: float, **script: Any) -> None:
    (folder / "scripted.json").write_text(json.dumps({"accuracy": accuracy, **script}))


def attempt(name: str, action: Callable[[], Any]) -> None:
    """Note whether `action` could be done: its result, or "refused" and the reason."""
    try:
        tell(name, action())
    except (OSError, ValueError, ImportError) as error:
        tell(name, f"refused: {type(error).__name__}: {error}"[:200])


def tell(name: str, value: Any) -> None:
    """Leave it for the test to read."""
    FOUND[name] = value
    part = WORKSPACE / "code" / "found.json.part"
    part.write_text(json.dumps(FOUND))
    part.replace(part.with_suffix(""))


def play(*cases: Callable[[], None]) -> None:
    """Play the case that the environment names."""
    {case.__name__: case for case in cases}[CASE]()
