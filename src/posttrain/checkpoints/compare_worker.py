"""The comparing process: `python -m posttrain.checkpoints.compare_worker`, one job, one answer."""

from __future__ import annotations

import sys
from pathlib import Path

from posttrain.checkpoints.architecture import read_config
from posttrain.checkpoints.comparing import Compared, CompareFailed, CompareJob
from posttrain.checkpoints.comparison import Checkpoint, compare
from posttrain.checkpoints.headers import read_weights
from posttrain.checkpoints.matching import head_in_files, plan_submission, token_count
from posttrain.core.errors import InfrastructureError, PosttrainError, Rejected, SubmissionFault, boundary
from posttrain.infra.answering import claim_stdout, send


def answer(job: CompareJob) -> Compared:
    """Match the folder, then compare all weights; SubmissionFault if it is no fine-tune of the base."""
    folder, base_folder = Path(job.folder), Path(job.base)
    with boundary(InfrastructureError, f"reading the base model {base_folder}"):
        base, config = read_weights(base_folder), read_config(base_folder) or {}
    head = head_in_files(base, config)
    plan = plan_submission(
        folder, base, base_config=config, head=head, tokens=lambda: token_count(base_folder)
    )
    with boundary(InfrastructureError, "reading the siblings"):
        siblings = {name: Checkpoint.whole(read_weights(Path(path))) for name, path in job.siblings.items()}
    with boundary(InfrastructureError, "comparing weights"):
        provenance, findings = compare(
            Checkpoint.planned(plan), base, head=head, siblings=siblings, threads=job.threads
        )
    return Compared(provenance=provenance, findings=findings, repairs=plan.repairs)


def failure(error: PosttrainError) -> CompareFailed:
    """The answer that says whose fault it is."""
    match error:
        case Rejected():
            return CompareFailed(kind="rejected", error=error.reason, hint=error.hint)
        case SubmissionFault():
            return CompareFailed(kind="unloadable", error=error.reason, hint=error.hint)
        case _:
            return CompareFailed(kind="error", error=str(error))


def main() -> int:
    with claim_stdout() as pipe:
        try:
            with boundary(InfrastructureError, "reading the job"):
                job = CompareJob.model_validate_json(sys.stdin.buffer.readline())
            reply: Compared | CompareFailed = answer(job)
        except PosttrainError as error:
            reply = failure(error)
        send(pipe, reply)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
