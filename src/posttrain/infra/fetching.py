"""Children that fetch and convert: one job line in, progress lines, one result out.

Downloads and conversions pull in libraries that the harness must never hold (torch, the hub client),
so each runs as `python -m <module>` and ends with its job. A child that finds its standard input
closed has nobody left to work for; the spawner ends it.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from posttrain.core.errors import InfrastructureError, MissingExtra, UsageError
from posttrain.core.frozen import Frozen
from posttrain.infra.answering import claim_stdout, send
from posttrain.infra.processes import Command, Spawner

Progress = Callable[[str], None]
"""Called with one line for people."""

_PASSED = ("PATH", "HOME", "USER", "LANG", "TMPDIR", "TZ", "NETRC", "PYTHONPATH", "CURL_CA_BUNDLE")
_PASSED_PREFIXES = ("LC_", "SSL_", "REQUESTS_", "PIP_", "HF_", "XDG_", "OMP_", "MKL_")
_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
_TAIL = 2000


class FetchProgress(Frozen):
    event: Literal["progress"] = "progress"
    line: str


class FetchDone(Frozen):
    event: Literal["done"] = "done"
    result: dict[str, Any]


class FetchFailed(Frozen):
    event: Literal["failed"] = "failed"
    error: str
    usage: bool
    """The caller can do something about it; otherwise the lab is at fault."""


_REPLY: TypeAdapter[FetchProgress | FetchDone | FetchFailed] = TypeAdapter(
    Annotated[FetchProgress | FetchDone | FetchFailed, Field(discriminator="event")]
)


def child_environment(host: Mapping[str, str], **fixed: str) -> dict[str, str]:
    """What a fetching child may know of the host: paths, proxies, certificates, pip's and the hub's settings.

    Whether the network may be used was decided before; a child that runs may use it.
    """
    passed = {
        name: value
        for name, value in host.items()
        if name in _PASSED or name.startswith(_PASSED_PREFIXES) or name.lower() in _PROXIES
    }
    for offline in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        passed.pop(offline, None)
    return {
        "PATH": os.defpath,
        **passed,
        "OMP_WAIT_POLICY": "PASSIVE",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        **fixed,
    }


def installed(*modules: str) -> bool:
    """Whether all top-level modules can be imported; none is."""
    return all(importlib.util.find_spec(module) is not None for module in modules)


def require(extra: str, *modules: str, needed_for: str) -> None:
    """MissingExtra unless all `modules` are installed."""
    if not installed(*modules):
        raise MissingExtra(extra, needed_for)


def require_space(folder: Path, needed: float) -> None:
    """UsageError unless the disk of `folder` has that many bytes free."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise UsageError(f"{folder}: {needed / 1e9:.1f} GB needed for the model, {free / 1e9:.1f} GB free")


def run_worker(
    module: str, job: Frozen, *, environment: Mapping[str, str], log: Path, progress: Progress
) -> dict[str, Any]:
    """The result of `python -m module` for `job`.

    UsageError for what the caller can mend, InfrastructureError for a child that died; what it wrote
    to standard error stands in `log`.
    """
    command = Command(
        argv=[sys.executable, "-P", "-m", module],
        cwd=log.parent,
        env=environment,
        stdin="pipe",
        stdout="pipe",
        stderr=log,
    )
    with Spawner() as spawner, spawner.spawn(command, name=module.rsplit(".", 1)[-1]) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(job.model_dump_json().encode() + b"\n")
        child.stdin.flush()
        for line in child.stdout:
            reply = _parse(line, module)
            if isinstance(reply, FetchProgress):
                progress(reply.line)
            elif isinstance(reply, FetchDone):
                return reply.result
            else:
                raise (UsageError if reply.usage else InfrastructureError)(reply.error)
    raise InfrastructureError(f"{module} died: {_last_line(log)}")


def run_tool(argv: Sequence[str], *, environment: Mapping[str, str], log: Path) -> None:
    """Run a command to its end; InfrastructureError with its last line of output if it fails."""
    command = Command(argv=argv, cwd=log.parent, env=environment, stdout=log, stderr="stdout")
    with Spawner() as spawner, spawner.spawn(command, name=Path(argv[0]).name) as child:
        code = child.wait()
    if code != 0:
        raise InfrastructureError(f"{' '.join(argv[1:4])} failed: {_last_line(log)}")


def serve(handle: Callable[[bytes, Progress], Frozen]) -> None:
    """The child's side: read the job line, answer with what `handle` returns or raises of our own errors.

    Whatever libraries print goes to standard error, so that replies stay alone on their pipe.
    """
    with claim_stdout() as pipe:
        try:
            result = handle(sys.stdin.buffer.readline(), lambda line: send(pipe, FetchProgress(line=line)))
            send(pipe, FetchDone(result=result.model_dump(mode="json")))
        except (UsageError, InfrastructureError) as error:
            send(pipe, FetchFailed(error=str(error), usage=isinstance(error, UsageError)))


def _parse(line: bytes, module: str) -> FetchProgress | FetchDone | FetchFailed:
    try:
        return _REPLY.validate_json(line)
    except ValidationError as error:
        raise InfrastructureError(f"{module} answered nonsense: {line[:200]!r}") from error


def _last_line(log: Path) -> str:
    lines = log.read_bytes()[-_TAIL:].decode("utf-8", "replace").strip().splitlines() if log.is_file() else []
    return lines[-1].strip() if lines else "it said nothing"
