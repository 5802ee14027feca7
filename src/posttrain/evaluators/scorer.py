"""The scorer process: one ScoringJob line in, one Evaluation or ScoringFailed line out.

It has gold and texts, and neither network nor weights. What foreign code prints goes to standard
error, so that the answer stays the only line on standard output.
"""

from __future__ import annotations

import os
import sys
from typing import BinaryIO

from posttrain.core.errors import PluginError, PosttrainError, boundary
from posttrain.core.evaluation import ScoringFailed, ScoringJob
from posttrain.core.scores import Evaluation
from posttrain.evaluators.stock import make_evaluator


def score(job: ScoringJob) -> Evaluation:
    """The evaluation of one job. Raises PluginError if the evaluator or a gold answer is at fault."""
    wanted = len(job.items) * job.samples
    if not job.items or len(job.outputs) != wanted:
        raise PluginError(f"{len(job.outputs)} outputs for {len(job.items)} items of {job.samples} samples")
    evaluator = make_evaluator(job)
    with boundary(PluginError, f"evaluator {job.evaluator}"):
        return evaluator.evaluate(job.items, job.outputs)


def serve(line: bytes) -> Evaluation | ScoringFailed:
    """The answer to one line."""
    try:
        with boundary(PluginError, "reading the scoring job"):
            job = ScoringJob.model_validate_json(line)
        return score(job)
    except PosttrainError as error:
        return ScoringFailed(error=str(error))


def claim_stdout() -> BinaryIO:
    """The real standard output for our one line; everything else that prints gets standard error."""
    answer = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return answer


def main() -> int:
    answer = claim_stdout()
    result = serve(sys.stdin.buffer.readline())
    answer.write(result.model_dump_json().encode("utf-8") + b"\n")
    answer.close()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
