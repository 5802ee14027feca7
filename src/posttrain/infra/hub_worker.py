"""Talks to the hub in a process of its own: `python -m posttrain.infra.hub_worker`."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from posttrain.core.errors import InfrastructureError, UsageError, boundary
from posttrain.core.frozen import Frozen
from posttrain.infra.fetching import Progress, require_space, serve
from posttrain.infra.files import write_jsonl
from posttrain.infra.hub import Fetched, FileJob, RowsJob, SnapshotJob
from posttrain.infra.model_folder import INDEX, WEIGHTS, choose_weights, is_carried

_JOB: TypeAdapter[SnapshotJob | RowsJob | FileJob] = TypeAdapter(
    Annotated[SnapshotJob | RowsJob | FileJob, Field(discriminator="kind")]
)
_REPORT_EVERY_S = 10.0


def fetch_model(job: SnapshotJob, progress: Progress) -> Fetched:
    """Download what a loader needs of a model at one commit and check it against what the hub says of it."""
    from huggingface_hub import HfApi, snapshot_download

    api = HfApi()
    target = Path(job.target)
    with _hub_errors(job.repo, api.endpoint):
        info = api.model_info(job.repo, revision=job.revision, files_metadata=True)
        listed = {file.rfilename: file for file in info.siblings or []}
        wanted = _choose(job, info.sha, sorted(listed), target, api)
        total = sum(listed[name].size or 0 for name in wanted)
        require_space(target.parent, total)
        progress(f"fetching {job.repo} at {info.sha[:12]}: {len(wanted)} files, {_megabytes(total)}")
        with _watched(target, total, job.repo, progress):
            snapshot_download(job.repo, revision=info.sha, local_dir=target, allow_patterns=_exactly(wanted))
    for name in wanted:
        _check(target / name, listed[name])
    return Fetched(revision=info.sha, bytes=total, endpoint=api.endpoint)


def fetch_rows(job: RowsJob, progress: Progress) -> Fetched:
    """Write the rows of a split; values that JSON lacks (dates, bytes) are refused by name."""
    from datasets import load_dataset
    from huggingface_hub import HfApi

    api = HfApi()
    label = " ".join(part for part in (job.dataset, job.config, job.split) if part)
    progress(f"fetching rows: {label}")
    with _hub_errors(job.dataset, api.endpoint, kind="data set"):
        revision = api.dataset_info(job.dataset).sha
        rows = load_dataset(job.dataset, job.config, split=job.split, revision=revision)
    with boundary(UsageError, f"data set {label}: rows as JSON"):
        write_jsonl(Path(job.target), rows)
    return Fetched(revision=revision, bytes=Path(job.target).stat().st_size, endpoint=api.endpoint)


def fetch_file(job: FileJob, progress: Progress) -> Fetched:
    """Download one file of a data set."""
    from huggingface_hub import HfApi

    api = HfApi()
    progress(f"fetching {job.name} of {job.dataset}")
    target = Path(job.target)
    with _hub_errors(job.dataset, api.endpoint, kind="data set"):
        revision = api.dataset_info(job.dataset).sha
        found = api.hf_hub_download(
            job.dataset, job.name, repo_type="dataset", revision=revision, local_dir=target.parent / "hub"
        )
    Path(found).replace(target)
    return Fetched(revision=revision, bytes=target.stat().st_size, endpoint=api.endpoint)


def _choose(job: SnapshotJob, sha: str, names: list[str], target: Path, api: Any) -> list[str]:
    """The files to bring; UsageError for a repository without safetensors."""
    index = None
    if INDEX in names and WEIGHTS not in names:
        index = Path(api.hf_hub_download(job.repo, INDEX, revision=sha, local_dir=target)).read_bytes()
    weights = choose_weights(names, index)
    if not weights:
        others = [name for name in names if name.endswith((".bin", ".pt", ".gguf"))]
        has = f"only {others[0]}" if others else "none"
        raise UsageError(
            f"model {job.repo}: no safetensors weights ({has}); take a revision that has them,"
            " or save a copy with transformers and give its folder"
        )
    if missing := [name for name in weights if name not in names]:
        raise UsageError(f"model {job.repo}: its index names {missing[0]}, which is not there")
    carried = {name for name in names if is_carried(name) and (name != INDEX or index is not None)}
    return sorted(carried | set(weights))


def _check(path: Path, listed: Any) -> None:
    """Compare with the hub's size and hash: sha256 of large files, git's blob hash of small ones."""
    if not path.is_file():  # the client returns quietly when a connection breaks half-way
        raise InfrastructureError(f"{path.name}: did not arrive; try again")
    size = path.stat().st_size
    with path.open("rb") as file:
        if listed.lfs is not None:
            good = hashlib.file_digest(file, "sha256").hexdigest() == listed.lfs.sha256
        elif listed.blob_id is not None:
            blob = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
            blob.update(file.read())
            good = blob.hexdigest() == listed.blob_id
        else:
            good = listed.size in {None, size}
    if not good:
        path.unlink()
        raise InfrastructureError(f"{path.name}: not what the hub says it is; removed, try again")


@contextmanager
def _watched(folder: Path, total: int, label: str, progress: Progress) -> Iterator[None]:
    """A line every ten seconds about how much has arrived."""
    done = threading.Event()

    def report() -> None:
        while not done.wait(_REPORT_EVERY_S):
            arrived = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
            progress(f"fetching {label}: {_megabytes(min(arrived, total))} of {_megabytes(total)}")

    thread = threading.Thread(target=report, name="download-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@contextmanager
def _hub_errors(name: str, endpoint: str, *, kind: str = "model") -> Iterator[None]:
    """One clear line instead of the client's pages; what is our own passes."""
    from huggingface_hub import errors

    remedy = "if it is private or gated, accept its terms there and set HF_TOKEN"
    try:
        with boundary(InfrastructureError, f"fetching {name} from {endpoint}"):
            try:
                yield
            except errors.GatedRepoError as error:
                raise UsageError(f"{kind} {name}: gated on {endpoint}; {remedy}") from error
            except errors.RevisionNotFoundError as error:
                raise UsageError(f"{kind} {name}: no such revision on {endpoint}") from error
            except errors.RepositoryNotFoundError as error:
                raise UsageError(f"{kind} {name}: not found on {endpoint}; {remedy}") from error
            except errors.EntryNotFoundError as error:
                raise UsageError(f"{kind} {name}: {str(error).splitlines()[0]}") from error
    except InfrastructureError as error:
        line = " ".join(str(error).split())[:400]
        raise InfrastructureError(line) from error


def _exactly(names: list[str]) -> list[str]:
    """Names as patterns that match nothing else."""
    return [name.replace("[", "[[]") for name in names]


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"


def _handle(line: bytes, progress: Progress) -> Frozen:
    job = _JOB.validate_python(json.loads(line))
    if isinstance(job, SnapshotJob):
        return fetch_model(job, progress)
    if isinstance(job, RowsJob):
        return fetch_rows(job, progress)
    return fetch_file(job, progress)


if __name__ == "__main__":
    serve(_handle)
