"""What a prompt alone gives: the untouched base under another prompt, on the items that are reported.

Much of what training gains on a small model is the form of an answer. A few worked examples in the prompt
teach the form as well, so the gain of training is shown beside theirs.
"""

from __future__ import annotations

from collections.abc import Mapping

from posttrain.benchmarks.prompts import prompt_settings
from posttrain.core.errors import InfrastructureError, boundary
from posttrain.core.grading import Assessment, Split
from posttrain.core.runs import FormatControl
from posttrain.core.specs import TaskSpec
from posttrain.evaluators.improvement import improvement
from posttrain.infra.digests import digest_value
from posttrain.runs.assessing import Variant, assess
from posttrain.runs.baseline import baseline_key, cached_baseline
from posttrain.runs.history import MeasuredControl
from posttrain.runs.plan import FROZEN_DATE
from posttrain.runs.session import Session

REPORTED: Split = "test"
"""Both protocols report a test score."""


@boundary(InfrastructureError, "measuring what a prompt alone gives")
def measure_control(session: Session, baselines: Mapping[Split, Assessment]) -> None:
    """Measure the task's format control once, before the agent's clock starts; read where it was measured."""
    task, history = session.prepared.chosen.control, session.history
    if task is None or history.control is not None or history.started:
        return
    variant = _variant(session, task)
    plan = session.plan.model_copy(update={"prompt": variant.prompt, "generation": variant.generation})
    key = {**baseline_key(plan, REPORTED, session.prepared.items(REPORTED)), "variant": task.id}

    def measure() -> Assessment:
        title = f"a prompt alone ({task.id})"
        with session.terminal.progress(title) as report, session.signals.interruptible():
            return assess(session, REPORTED, None, label="format-control", variant=variant, progress=report)

    assessment, cached = cached_baseline(session.lab.paths.baselines, key, measure=measure)
    control = FormatControl(
        task=task.id,
        split=REPORTED,
        score=assessment.evaluation.score,
        improvement=improvement(task.metric, baselines[REPORTED].evaluation, assessment.evaluation),
    )
    session.ledger.append(
        "control",
        MeasuredControl(
            key=digest_value(key),
            cached=cached,
            digest=digest_value(assessment.evaluation),
            control=control,
        ),
    )
    session.tell(f"a prompt alone ({task.id}): {control.score.value:.1f}, {control.improvement.value:+.1f}")


def _variant(session: Session, task: TaskSpec) -> Variant:
    facts = session.prepared.model.facts()
    prompt = prompt_settings(task, has_chat_template=facts.has_chat_template, frozen_date=FROZEN_DATE)
    return Variant(task, prompt, task.generation)
