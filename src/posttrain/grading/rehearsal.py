"""Gold answers and empty ones through a tool: does it judge as it should, before anything hangs on it?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from posttrain.core.engine import Generated, Progress, Prompt, PromptSettings
from posttrain.core.errors import PluginError
from posttrain.core.scores import Item, Output
from posttrain.core.specs import GenerationSettings
from posttrain.evaluators.selfcheck import SelfCheck
from posttrain.grading.adapting import Adapter
from posttrain.grading.views import WorkerViews
from posttrain.grading.waves import Places
from posttrain.infra.processes import Spawner

_REHEARSED = 8
"""Items that a rehearsal asks."""


class Rehearsal:
    """Answers with the gold answers of the items, or with nothing: does the tool judge as it should?"""

    def __init__(self, items: Sequence[Item], kind: Literal["gold", "empty"]) -> None:
        self._items = items
        self._kind = kind
        self._places = Places(items)

    def generate(
        self,
        prompts: Sequence[Prompt],
        *,
        prompt: PromptSettings,  # noqa: ARG002
        generation: GenerationSettings,  # noqa: ARG002
        progress: Progress | None = None,  # noqa: ARG002
    ) -> Generated:
        texts = [self._gold(each) if self._kind == "gold" else "" for each in prompts]
        return Generated(outputs=tuple(Output(text=text, tokens=0) for text in texts), generation_s=0.0)

    def stop(self) -> None:
        """There is nothing to give up."""

    def _gold(self, prompt: Prompt) -> str:
        """The gold answer of the item whose question stands in the prompt's last turn."""
        place = self._places(prompt.turns[-1].content)
        return str(self._items[place].fields.get("answer", "")) if place < len(self._items) else ""


def rehearse(adapter: Adapter, logs: Path, *, spawner: Spawner, views: WorkerViews) -> SelfCheck:
    """Let the tool judge gold answers and empty ones to a few items; PluginError unless gold is better."""
    few = replace(adapter, items=adapter.items[:_REHEARSED])
    scores: dict[str, float] = {}
    for kind in ("gold", "empty"):
        place = logs / kind
        place.mkdir(parents=True, exist_ok=True)
        given = few.grade(Rehearsal(few.items, kind), place, spawner=spawner, views=views, progress=None)
        scores[kind] = given.evaluation.score.value
    check = SelfCheck(gold=scores["gold"], empty=scores["empty"], n=len(few.items))
    if not adapter.task.metric.better(scores["gold"], scores["empty"]):
        raise PluginError(f"{adapter.task.id}: OpenCompass judges {check.told}")
    if 0.0 < scores["gold"] <= 1.0:
        raise PluginError(
            f"{adapter.task.id}: OpenCompass gives gold answers {scores['gold']:g}: "
            f"{adapter.settings.metric} is a share of 1, and a number from 0 to 100 is needed"
        )
    if (scores["gold"], scores["empty"]) == (100.0, 0.0):
        return check
    told = f"OpenCompass gives gold answers {scores['gold']:.1f} and empty ones {scores['empty']:.1f}"
    return check.model_copy(update={"warnings": (told,)})
