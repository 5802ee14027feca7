"""Evaluators that are a task folder's own code: what they may return; nothing else becomes a score."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from posttrain.core.errors import PluginError
from posttrain.core.evaluation import EngineGiven, EngineWanted, ScoringJob
from posttrain.core.scores import Evaluation, Item, Metric, Output
from posttrain.core.specs import TaskSpec
from posttrain.evaluators.client import score
from posttrain.evaluators.own import form_of
from posttrain.evaluators.selfcheck import self_check
from posttrain.infra.processes import Spawner

ITEMS = tuple(
    Item(id=f"i{n}", fields={"question": f"What is {n} + {n}?", "answer": str(2 * n)}) for n in range(10)
)
Scored = Callable[..., Evaluation]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "mine"
    made.mkdir()
    return made


@pytest.fixture
def scored(folder: Path, spawner: Spawner, tmp_path: Path) -> Scored:
    """Score this eval.py in a real scorer process, against a checkpoint that is right about small numbers."""

    def run(code: str, **fields: object) -> Evaluation:
        (folder / "eval.py").write_text(textwrap.dedent(code), "utf-8")
        job = ScoringJob.model_validate(
            {
                "evaluator": "own",
                "folder": str(folder),
                "metric": Metric(),
                "items": ITEMS,
                "outputs": (),
                "settings": {"scale": 1.0},
                **fields,
            }
        )
        log = tmp_path / "scorer.log"
        return score(job, spawner=spawner, log=log, timeout_s=60, asked=checkpoint)

    return run


def checkpoint(wanted: EngineWanted) -> EngineGiven:
    if wanted.generation.get("max_new_tokens") == 0:
        return EngineGiven(error="max_new_tokens: must be greater than 0")
    said = {item.id: item.fields["answer"] if n < 4 else "I don't know" for n, item in enumerate(ITEMS)}
    return EngineGiven(
        outputs=tuple(
            Output(
                text=said[name] if wanted.turns is None else wanted.turns[n][-1].content, tokens=1, cut=n == 0
            )
            for n, name in enumerate(wanted.ids)
        )
    )


BY_ITEM = """
    def evaluate(items, engine, settings):
        outputs = engine.ask(items)
        return [settings["scale"] * (o.text == i.fields["answer"]) for i, o in zip(items, outputs)]
"""


def test_one_value_an_item_is_a_score_with_items(scored: Scored) -> None:
    made = scored(BY_ITEM)
    assert (made.score.value, made.score.n, made.score.cut_share) == (40.0, 10, 0.1)
    assert [item.value for item in made.items] == [1.0] * 4 + [0.0] * 6
    assert made.score.ci95[0] > 10


def test_a_conversation_of_its_own_goes_to_the_checkpoint(scored: Scored) -> None:
    made = scored(
        """
        def evaluate(items, engine, settings):
            first = engine.ask(items)
            sure = {"role": "user", "content": "Sure?"}
            turns = [[{"role": "assistant", "content": o.text}, sure] for o in first]
            return [o.text == "Sure?" for o in engine.ask(items, turns=turns, max_new_tokens=4)]
        """
    )
    assert made.score.value == 100.0


def test_a_whole_score_has_no_interval_made_up_from_items(scored: Scored) -> None:
    made = scored(
        """
        from posttrain.core.scores import Metric, Score

        def evaluate(items, engine, settings):
            return Score(metric=Metric(), value=62.5, n=len(items), stderr=1.0, ci95=(60, 65),
                         secondary={"turns": 3.5})
        """
    )
    assert made.score.value == pytest.approx(62.5)
    assert made.score.secondary == {"turns": 3.5}
    assert "the improvement has no interval" in " ".join(made.score.warnings)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("def evaluate(items, engine, settings): raise RuntimeError('no game server')", "no game server"),
        ("def evaluate(items, engine, settings): return 0.5", "one value in \\[0, 1\\] an item"),
        ("def evaluate(items, engine, settings): return [1.0]", "1 values for 10 items"),
        ("def evaluate(items, engine, settings): return {'score': 5}", "returned dict"),
        (
            "def evaluate(items, engine, settings): return engine.ask(items, max_new_tokens=0)",
            "max_new_tokens",
        ),
        ("def other(): pass", "has neither evaluate"),
        ("def evaluate(:", "cannot be read"),
    ],
)
def test_what_is_no_score_is_an_error_and_never_a_zero(scored: Scored, code: str, said: str) -> None:
    with pytest.raises(PluginError, match=said):
        scored(code)


def test_an_odd_value_costs_its_item_and_is_told(scored: Scored) -> None:
    made = scored("def evaluate(items, engine, settings): return [1.7] + [True] * 9")
    assert made.score.value == 90.0
    assert "1 of 10 items count as wrong: evaluate returned 1.7" in " ".join(made.score.warnings)


def rehearse(folder: Path, spawner: Spawner, tmp_path: Path, code: str):
    (folder / "eval.py").write_text(textwrap.dedent(code), "utf-8")
    spec = TaskSpec(
        id="mine", folder=folder, title="Mine", evaluator="own", evaluator_settings={"scale": 1.0}
    )
    return self_check(
        spec, ITEMS, score=lambda job: score(job, spawner=spawner, log=tmp_path / "log", timeout_s=60)
    )


def test_the_self_check_rehearses_gold_and_empty_answers(
    folder: Path, spawner: Spawner, tmp_path: Path
) -> None:
    check = rehearse(folder, spawner, tmp_path, BY_ITEM)
    assert (check.gold, check.empty, check.warnings) == (100.0, 0.0, ())


def test_gold_of_the_folder_runs_in_the_scorer_alone(folder: Path, spawner: Spawner, tmp_path: Path) -> None:
    code = """
        import os
        from pathlib import Path

        def gold(item):
            Path(__file__).with_name("pid").write_text(str(os.getpid()))
            return "#" + item.fields["answer"]

        def evaluate(items, engine, settings):
            return [o.text == "#" + i.fields["answer"] for i, o in zip(items, engine.ask(items))]
    """
    assert rehearse(folder, spawner, tmp_path, code).gold == 100.0
    assert int((folder / "pid").read_text("ascii")) != os.getpid()


def test_an_evaluator_that_cannot_tell_gold_from_empty_is_refused(
    folder: Path, spawner: Spawner, tmp_path: Path
) -> None:
    with pytest.raises(PluginError, match=r"gold answers score 100.00, empty ones 100.00"):
        rehearse(folder, spawner, tmp_path, "def evaluate(items, engine, settings): return [1] * len(items)")


ANCESTOR = """
    from rdagent.scenarios.rl.autorl_bench.core import BaseEvaluator

    class NewTaskEvaluator(BaseEvaluator):
        def __init__(self, config):
            self.config = config
            self.benchmark_id = config.id

        def run_eval(self, model_path: str, workspace_path: str, **kwargs) -> dict:
            result = self.get_default_result(self.benchmark_id, model_path)
            RESULT
            return result
"""


def ancestor(body: str) -> str:
    return textwrap.dedent(ANCESTOR).replace("RESULT", body)


def test_the_ancestor_s_class_is_run_on_a_checkpoint(scored: Scored, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    made = scored(
        ancestor("result.update(score=85.0, accuracy_summary={'accuracy': 85.0, 'total': 200, 'who': 'x'})"),
        model=str(model),
    )
    assert made.score.value == pytest.approx(85.0)
    assert made.score.secondary == {"accuracy": 85.0, "total": 200.0}


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("pass", "returned no score"),
        ("result.update(score=0.0, error='vLLM did not start')", "vLLM did not start"),
        ("result.update(score=float('nan'))", "returned no score"),
        ("result.update(score=850.0)", "not one from 0 to 100"),
        ("raise OSError('disk')", "OSError: disk"),
    ],
)
def test_a_result_without_a_score_is_an_error(scored: Scored, tmp_path: Path, body: str, said: str) -> None:
    with pytest.raises(PluginError, match=said):
        scored(ancestor(body), model=str(tmp_path))


def test_the_form_is_read_without_running_the_code(folder: Path) -> None:
    (folder / "eval.py").write_text(ancestor("raise SystemExit(7)") + "\nraise SystemExit(8)\n", "utf-8")
    assert form_of(folder) == "run_eval"
