"""The untouched base on the run's own items: measured once for everything that decides it, then read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import ValidationError

import posttrain.evaluators
from posttrain.core.grading import Assessment, Split
from posttrain.core.runs import RunPlan
from posttrain.core.scores import Item
from posttrain.infra.digests import digest_tree, digest_value
from posttrain.infra.files import write_json

Measure = Callable[[], Assessment]


def baseline_key(plan: RunPlan, split: Split, items: tuple[Item, ...]) -> dict[str, Any]:
    """Everything that decides the number: items with their gold in order, prompt, model, code, plan."""
    return {
        "items": [item.id for item in items],
        "gold": digest_value([item.fields for item in items]),
        "split": split,
        "model": plan.model.digest,
        "prompt": plan.prompt.model_dump(mode="json"),
        "generation": plan.generation.model_dump(mode="json"),
        "stops": plan.stop_token_ids,
        "task": plan.task.digest,
        "evaluators": digest_tree(Path(posttrain.evaluators.__file__).parent),
        "numeric": plan.numeric.model_dump(mode="json"),
        "libraries": plan.libraries,
        "host": plan.host if plan.numeric.engine != "scripted" else "",
    }


def cached_baseline(folder: Path, key: dict[str, Any], *, measure: Measure) -> tuple[Assessment, bool]:
    """The assessment under `key` and whether it was read instead of measured.

    A failed measurement raises and is never kept; a file that is not a whole assessment of this key
    is measured again.
    """
    path = folder / f"{digest_value(key)}.json"
    found = _read(path)
    if found is not None:
        return found, True
    measured = measure()
    folder.mkdir(parents=True, exist_ok=True)
    write_json(path, {"key": key, "assessment": measured.model_dump(mode="json")})
    return measured, False


def _read(path: Path) -> Assessment | None:
    try:
        return Assessment.model_validate(json.loads(path.read_bytes())["assessment"])
    except (OSError, ValueError, KeyError, TypeError, ValidationError):
        return None
