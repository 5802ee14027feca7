"""What every checkpoint of a run is asked on a split, and what is kept of its answers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from posttrain.core.engine import NumericPlan, Prompt, PromptSettings
from posttrain.core.errors import InfrastructureError, boundary
from posttrain.core.frozen import Frozen
from posttrain.core.grading import Split
from posttrain.core.paths import GradingFolder
from posttrain.core.scores import Evaluation, Item, ItemResult, Output
from posttrain.core.specs import GenerationSettings, TaskSpec
from posttrain.grading.adapting import Tool
from posttrain.infra.files import read_jsonl, write_jsonl


@dataclass(frozen=True)
class Exam:
    """What every checkpoint of a run is asked on one split, and how its answers are judged."""

    split: Split
    task: TaskSpec
    items: tuple[Item, ...]
    prompts: tuple[Prompt, ...]
    """One an item, in the order of the items."""
    prompt: PromptSettings
    generation: GenerationSettings
    base: Path
    """Folder of the base model."""
    numeric: NumericPlan
    tool: Tool | None = None
    """What asks and judges instead of our own evaluators, where the task's evaluator is a tool's."""


class ItemRecord(Frozen):
    """One line of grading/<label>/items.jsonl. It holds texts of hidden items and stays with the lab."""

    result: ItemResult
    outputs: tuple[Output, ...]


def keep_items(evaluation: Evaluation, outputs: tuple[Output, ...], folder: Path, *, samples: int) -> None:
    """Write each item's result beside its texts; `folder` is grading/<label>."""
    records = [
        ItemRecord(result=result, outputs=outputs[k * samples : (k + 1) * samples])
        for k, result in enumerate(evaluation.items)
    ]
    with boundary(InfrastructureError, "keeping item results"):
        write_jsonl(GradingFolder(folder).items, records, durable=False)


def read_items(folder: Path) -> tuple[ItemRecord, ...]:
    """The items of a grading, in the order of the split; `folder` is grading/<label>."""
    return tuple(ItemRecord.model_validate(row) for row in read_jsonl(GradingFolder(folder).items))
