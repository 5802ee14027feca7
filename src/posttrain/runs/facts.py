"""What only an open base model can tell (end tokens, rendered prompts), asked once and kept."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from posttrain.core.engine import BaseFacts, NumericPlan, Prompt, PromptSettings, RenderedPrompt
from posttrain.core.frozen import Frozen
from posttrain.engines.client import EngineWorker
from posttrain.infra.digests import digest_value
from posttrain.infra.files import write_json
from posttrain.infra.models import Model


class OpenedBase(Frozen):
    """One answer of a worker: facts of the base and some rendered prompts."""

    facts: BaseFacts
    rendered: tuple[RenderedPrompt, ...]


def opened_base(
    cache: Path,
    *,
    model: Model,
    numeric: NumericPlan,
    libraries: dict[str, str],
    prompt: PromptSettings,
    prompts: Sequence[Prompt],
    worker: EngineWorker,
) -> OpenedBase:
    """Facts of `model` and `prompts` as it reads them; the worker is started only if nothing is kept yet."""
    key = {
        "model": model.digest,
        "engine": numeric.engine,
        "libraries": libraries,
        "prompt": prompt.model_dump(mode="json"),
        "prompts": [item.model_dump(mode="json") for item in prompts],
    }
    path = cache / f"{digest_value(key)}.json"
    try:
        return OpenedBase.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        pass
    with worker:
        facts = worker.open(model.folder, numeric)
        rendered = worker.render(prompts, prompt=prompt) if prompts else []
    found = OpenedBase(facts=facts, rendered=tuple(rendered))
    cache.mkdir(parents=True, exist_ok=True)
    write_json(path, found)
    return found
