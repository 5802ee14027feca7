"""What a run's checkpoints are asked, and how a kept grading is read back."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from posttrain.benchmarks.prompts import build_prompts
from posttrain.core.engine import Progress, PromptSettings
from posttrain.core.errors import InfrastructureError
from posttrain.core.grading import Assessment, Grade, Split
from posttrain.core.paths import RunPaths
from posttrain.core.scores import Evaluation
from posttrain.core.specs import GenerationSettings, TaskSpec
from posttrain.grading.exam import Exam, read_items
from posttrain.grading.workers import Assessor
from posttrain.runs.isolation import worker_views
from posttrain.runs.session import Session


class Variant(NamedTuple):
    """A task with another prompt than the plan's."""

    task: TaskSpec
    prompt: PromptSettings
    generation: GenerationSettings


def assessor(
    session: Session,
    split: Split,
    *,
    variant: Variant | None = None,
    baseline: Assessment | None = None,
    progress: Progress | None = None,
    warm: bool = False,
) -> Assessor:
    """What grades checkpoints on one split of this run, under the plan's prompt or another one.

    `warm`: one engine worker for all of the run's submissions, until `cancel`.
    """
    prepared, plan = session.prepared, session.plan
    variant = variant or Variant(prepared.task, plan.prompt, plan.generation)
    items = prepared.items(split)
    exam = Exam(
        split=split,
        task=variant.task,
        items=items,
        prompts=tuple(build_prompts(items, variant.prompt)),
        prompt=variant.prompt,
        generation=variant.generation,
        base=prepared.model.folder,
        numeric=plan.numeric,
        tool=prepared.chosen.tool,
    )
    return Assessor(
        exam,
        paths=session.paths,
        timeout_s=plan.request.grading_timeout_s,
        kill_mode=session.spawner.kill_mode,
        views=worker_views(plan.run_id, plan.isolation, session.lab),
        baseline=None if baseline is None else baseline.evaluation,
        siblings=session.prepared.siblings,
        progress=progress,
        shelf=session.paths.submissions if warm else None,
        tell=session.log.event,
    )


def assess(
    session: Session,
    split: Split,
    folder: Path | None,
    *,
    label: str,
    progress: Progress,
    variant: Variant | None = None,
    baseline: Assessment | None = None,
) -> Assessment:
    """Grade a folder, or the base, by workers of its own on the first device of the plan."""
    gpu = session.plan.gpus[0] if session.plan.gpus else None
    worker = assessor(session, split, variant=variant, baseline=baseline, progress=progress)
    return worker.assess(
        folder, label=label, gpu=gpu, on_fault=lambda error: session.log.event(f"{label}: {error}; once more")
    )


def read_evaluation(paths: RunPaths, grade: Grade) -> Evaluation:
    """The evaluation behind a grade; InfrastructureError if its items are gone or are not what they were."""
    if grade.score is None:
        raise InfrastructureError(f"submission {grade.submission_id} has no score")
    try:
        records = read_items(paths.grading_of(grade.same_as or grade.submission_id))
    except (OSError, ValueError) as error:
        raise InfrastructureError(f"items of submission {grade.submission_id}: {error}") from error
    if len(records) != grade.score.n:
        raise InfrastructureError(
            f"items of submission {grade.submission_id}: {len(records)} of {grade.score.n} are there"
        )
    return Evaluation(score=grade.score, items=tuple(record.result for record in records))
