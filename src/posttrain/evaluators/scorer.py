"""The scorer process: one ScoringJob line in, one Evaluation or ScoringFailed line out.

In between an evaluator of the task's own may ask the checkpoint (EngineWanted) and is answered (EngineGiven).
It has gold and texts, and neither network nor weights. What foreign code prints goes to standard
error, so that the answer stays the only line on standard output.
"""

from __future__ import annotations

import sys

from posttrain.core.errors import PluginError, PosttrainError, boundary
from posttrain.core.evaluation import EngineGiven, EngineWanted, ScoringFailed, ScoringJob
from posttrain.core.scores import Evaluation
from posttrain.evaluators.stock import OWN, Asked, make_evaluator
from posttrain.infra.answering import claim_stdout, send


def score(job: ScoringJob, asked: Asked | None = None) -> Evaluation:
    """The evaluation of one job. Raises PluginError if the evaluator or a gold answer is at fault."""
    wanted = 0 if job.evaluator == OWN else len(job.items) * job.samples
    if not job.items or len(job.outputs) != wanted:
        raise PluginError(f"{len(job.outputs)} outputs for {len(job.items)} items of {job.samples} samples")
    evaluator = make_evaluator(job, asked)
    with boundary(PluginError, f"evaluator {job.evaluator}"):
        return evaluator.evaluate(job.items, job.outputs)


def serve(line: bytes, asked: Asked | None = None) -> Evaluation | ScoringFailed:
    """The answer to one line."""
    try:
        with boundary(PluginError, "reading the scoring job"):
            job = ScoringJob.model_validate_json(line)
        return score(job, asked)
    except PosttrainError as error:
        return ScoringFailed(error=str(error))


def main() -> int:
    with claim_stdout() as pipe:

        def asked(wanted: EngineWanted) -> EngineGiven:
            send(pipe, wanted)
            reply = sys.stdin.buffer.readline()
            return EngineGiven.model_validate_json(reply) if reply else EngineGiven(error="no harness")

        send(pipe, serve(sys.stdin.buffer.readline(), asked))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
