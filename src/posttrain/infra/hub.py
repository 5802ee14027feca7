"""Models and data sets of the hub: what is asked of the fetching child, and its answers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from posttrain.core.frozen import Frozen
from posttrain.infra.fetching import Progress, child_environment, require, run_worker

_WORKER = "posttrain.infra.hub_worker"


class SnapshotJob(Frozen):
    """Bring the files of a model into a folder; a folder that holds a part of them is completed."""

    kind: Literal["model"] = "model"
    repo: str
    revision: str | None
    target: str


class RowsJob(Frozen):
    """Bring the rows of one split of a data set, one JSON document a line."""

    kind: Literal["rows"] = "rows"
    dataset: str
    config: str | None
    split: str
    target: str
    """The file that comes into being."""


class FileJob(Frozen):
    """Bring one file of a data set's repository."""

    kind: Literal["file"] = "file"
    dataset: str
    name: str
    target: str


class Fetched(Frozen):
    """What came."""

    revision: str | None
    """The commit it was taken at."""
    bytes: int
    endpoint: str


def fetch(
    job: SnapshotJob | RowsJob | FileJob,
    *,
    environment: Mapping[str, str],
    log: Path,
    progress: Progress,
) -> Fetched:
    """Run one job; UsageError says what is missing, unknown, gated or unreachable."""
    name = job.repo if isinstance(job, SnapshotJob) else job.dataset
    modules = ("huggingface_hub", "datasets") if isinstance(job, RowsJob) else ("huggingface_hub",)
    require("train", *modules, needed_for=f"fetching {name} from the hub")
    result = run_worker(_WORKER, job, environment=child_environment(environment), log=log, progress=progress)
    return Fetched.model_validate(result)
