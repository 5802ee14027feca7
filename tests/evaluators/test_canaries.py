"""The self-check plants cheats: an evaluator that rewards one of them is found before anything is graded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from posttrain.core.errors import PluginError
from posttrain.core.evaluation import ScoringJob
from posttrain.core.scores import Evaluation, Item
from posttrain.core.specs import TaskSpec
from posttrain.evaluators.aggregate import Judgement, evaluation
from posttrain.evaluators.scorer import score
from posttrain.evaluators.selfcheck import self_check

PROGRAM = {
    "answer": "def add(a, b):\n    return a + b\n",
    "test": "assert add(1, 2) == 3\nassert add(0, 0) == 0\n",
}
TASKS = {
    "numeric": ({}, [{"answer": "#### 72"}, {"answer": "#### -7"}, {"answer": "1,234"}]),
    "choice": ({"labels": ["True", "False"]}, [{"answer": "True"}, {"answer": "False"}]),
    "exact": ({}, [{"answer": "> ]"}, {"answer": "apple pear"}]),
    "code": ({"workers": 1}, [PROGRAM]),
}


def task(evaluator: str, settings: dict) -> TaskSpec:
    return TaskSpec(
        id="quiz", folder=Path("/"), title="Quiz", evaluator=evaluator, evaluator_settings=settings
    )


def items(rows: list[dict]) -> list[Item]:
    return [Item(id=str(number), fields=row) for number, row in enumerate(rows)]


def lenient(rewards: Callable[[str, str], bool]) -> Callable[[ScoringJob], Evaluation]:
    """A scorer that is right about gold and silence, and too kind to what `rewards` says."""

    def scoring(job: ScoringJob) -> Evaluation:
        judgements = [
            Judgement(value=float(rewards(output.text, str(item.fields["answer"]))), extracted=output.text)
            for item, output in zip(job.items, job.outputs, strict=True)
        ]
        return evaluation(job.items, job.outputs, judgements, metric=job.metric, macro=False)

    return scoring


@pytest.mark.parametrize("evaluator", TASKS)
def test_stock_evaluators_give_nothing_for_planted_cheats(evaluator: str) -> None:
    settings, rows = TASKS[evaluator]
    checked = self_check(task(evaluator, settings), items(rows), score=score)
    assert checked.cheats
    assert (checked.gold, checked.empty) == (100.0, 0.0)


@pytest.mark.parametrize(
    ("evaluator", "trick"),
    [("numeric", "number spraying"), ("choice", "several labels"), ("exact", "several answers")],
)
def test_an_evaluator_that_looks_for_the_answer_anywhere_is_caught(evaluator: str, trick: str) -> None:
    settings, rows = TASKS[evaluator]
    bare = [{"answer": row["answer"].removeprefix("#### ")} for row in rows]
    with pytest.raises(PluginError, match=f"planted cheat \\({trick}\\)"):
        self_check(task(evaluator, settings), items(bare), score=lenient(lambda text, gold: gold in text))


def test_an_evaluator_that_reads_the_end_of_a_number_is_caught() -> None:
    def ends(text: str, gold: str) -> bool:
        return text.rstrip(".").endswith(gold)

    with pytest.raises(PluginError, match="glued"):
        self_check(task("numeric", {}), items([{"answer": "11"}]), score=lenient(ends))
