"""Scores: what they say, and the process they are made in."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from posttrain.core.errors import GradingTimeout, PluginError, UsageError
from posttrain.core.evaluation import ScoringJob
from posttrain.core.scores import Item, Metric, Output
from posttrain.core.specs import TaskSpec
from posttrain.core.statistics import wilson
from posttrain.evaluators.client import score as score_in_child
from posttrain.evaluators.scorer import score
from posttrain.evaluators.selfcheck import self_check
from posttrain.infra.processes import Spawner

BOOLEAN = {"labels": ["True", "False"]}


def job(answers: list[str], texts: list[str], **fields: Any) -> ScoringJob:
    strata: list[str | None] = fields.pop("strata", [None] * len(answers))
    items = tuple(
        Item(id=str(n), fields={"answer": answer}, stratum=stratum)
        for n, (answer, stratum) in enumerate(zip(answers, strata, strict=True))
    )
    outputs = tuple(Output(text=text, tokens=1, cut="cut" in text) for text in texts)
    settings = fields.pop("settings", BOOLEAN)
    return ScoringJob.model_validate(
        {"evaluator": "choice", "folder": "/", "metric": Metric(), **fields}
        | {"settings": settings, "items": items, "outputs": outputs}
    )


def test_a_score_of_right_and_wrong_items_is_a_share_with_wilsons_interval() -> None:
    made = score(job(["True"] * 80 + ["False"] * 40, ["True"] * 120)).score
    assert made.value == pytest.approx(100 * 80 / 120)
    assert made.n == 120
    assert made.ci95 == pytest.approx(tuple(100 * end for end in wilson(80, 120)))
    assert made.stderr == pytest.approx(100 * (2 / 3 * 1 / 3 / 120) ** 0.5)
    assert made.constant_guess == pytest.approx(100 * 80 / 120)
    assert made.rules == {"first_label": 120}
    assert made.secondary == {"strict_format": pytest.approx(100 * 80 / 120)}
    assert made.warnings == ()


def test_items_stay_in_order_with_what_was_read() -> None:
    items = score(job(["True", "False"], ["so True", "?"])).items
    assert [(item.id, item.value, item.extracted, item.rule) for item in items] == [
        ("0", 1.0, "True", "first_label"),
        ("1", 0.0, None, None),
    ]


def test_few_items_cut_answers_and_silence_are_warned_of() -> None:
    made = score(job(["True"] * 4, ["cut", "cut", "?", "True"])).score
    assert made.cut_share == 0.5
    assert made.rules == {"first_label": 1, "none": 3}
    assert [warning.split(":")[0] for warning in made.warnings] == [
        "only 4 items",
        "50% of the answers were cut by the length limit",
        "no answer could be read from 75% of the texts",
    ]


def test_strata_are_told_apart_and_a_macro_score_weighs_them_equally() -> None:
    answers, strata = ["True"] * 4, ["a", "b", "b", "b"]
    plain = score(job(answers, ["True", "False", "False", "False"], strata=strata)).score
    macro = score(job(answers, ["True", "False", "False", "False"], strata=strata, macro=True)).score
    assert (plain.value, macro.value) == (25.0, 50.0)
    assert macro.macro
    assert plain.secondary["accuracy/a"] == 100.0
    assert plain.secondary["accuracy/b"] == 0.0


def test_several_samples_an_item_are_averaged() -> None:
    texts = ["True", "True", "False", "True", "False", "False", "False", "False"]
    made = score(job(["True", "True"], texts, samples=4))
    assert [item.value for item in made.items] == [0.75, 0.0]
    assert made.score.n == 2
    assert made.score.value == pytest.approx(37.5)


def test_all_graded_items_equal_still_have_an_interval() -> None:
    made = score(job(["True", "True"], ["True", "False"] * 2, samples=2)).score
    assert made.ci95[0] < 50 < made.ci95[1]


def test_other_counts_of_outputs_are_refused() -> None:
    with pytest.raises(PluginError, match="1 outputs for 2 items"):
        score(job(["True", "True"], ["True"]))
    with pytest.raises(PluginError, match="0 outputs for 0 items"):
        score(job([], []))


def test_an_unknown_evaluator_is_answered_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"no evaluator 'guess'. Known: .*choice"):
        score(job(["True"], ["True"], evaluator="guess"))


def test_a_setting_that_an_evaluator_does_not_know_is_named() -> None:
    with pytest.raises(PluginError, match=r"evaluator_settings.lables: there is no such field"):
        score(job(["True"], ["True"], settings={"lables": []}))


def test_the_process_answers_with_one_line(spawner: Spawner, tmp_path: Path) -> None:
    wanted = job(["True", "False"], ["True", "True"])
    assert score_in_child(wanted, spawner=spawner, log=tmp_path / "log", timeout_s=60) == score(wanted)


def test_a_job_that_cannot_be_scored_is_a_fault_of_the_task(spawner: Spawner, tmp_path: Path) -> None:
    with pytest.raises(PluginError, match="'maybe' is none of the labels"):
        score_in_child(job(["maybe"], ["True"]), spawner=spawner, log=tmp_path / "log", timeout_s=60)


def test_a_scorer_that_outruns_its_limit_is_stopped(spawner: Spawner, tmp_path: Path) -> None:
    with pytest.raises(GradingTimeout):
        score_in_child(job(["True"], ["True"]), spawner=spawner, log=tmp_path / "log", timeout_s=0.01)


def test_nonsense_on_standard_input_is_answered_in_form() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "posttrain.evaluators.scorer"],
        input=b"nonsense\n",
        capture_output=True,
        check=True,
    )
    assert "reading the scoring job" in json.loads(done.stdout)["error"]


def quiz(**fields: Any) -> TaskSpec:
    return TaskSpec.model_validate(
        {"id": "quiz", "folder": Path("/quiz"), "title": "Quiz", "evaluator": "numeric", **fields}
    )


def test_self_check_names_the_gold_answer_that_does_not_score() -> None:
    items = [Item(id="good", fields={"answer": "1"}), Item(id="bad", fields={"answer": "#### 1 or 2"})]
    with pytest.raises(PluginError, match="not one number"):
        self_check(quiz(), items, score=score)


def test_self_check_notices_an_evaluator_that_rewards_silence() -> None:
    items = [Item(id="1", fields={"answer": ""})]
    with pytest.raises(PluginError, match="quiz: gold answers score"):
        self_check(quiz(evaluator="exact", evaluator_settings={}), items, score=score)
