"""From a task and a base model to the pinned prompt, and from items to prompts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from posttrain.core.engine import Prompt, PromptSettings, Turn
from posttrain.core.errors import PluginError
from posttrain.core.scores import Item
from posttrain.core.specs import TaskSpec
from posttrain.engines.prompting import build_turns, fill

EXEMPLARS = "exemplars*.yaml"
"""Files of this name hold worked examples; their rows are never held out, whatever the variant."""


def prompt_settings(
    spec: TaskSpec, *, has_chat_template: bool, frozen_date: str | None = None
) -> PromptSettings:
    """The prompt of a task for one base, with nothing left open: `auto` is resolved, exemplars are turns."""
    style = spec.prompt.style
    if style == "auto":
        style = "chat" if has_chat_template else "plain"
    return PromptSettings(
        style=style,
        template=_template(spec, style),
        answer_template=spec.prompt.answer_template,
        system=spec.prompt.system,
        few_shot=_few_shot(spec, template=_template(spec, style)),
        chat_template_kwargs=spec.prompt.chat_template_kwargs,
        frozen_date=frozen_date,
    )


def build_prompts(items: Iterable[Item], settings: PromptSettings) -> list[Prompt]:
    """One prompt an item, in order. PluginError names a field that the template asks for and a row lacks."""
    return [Prompt(id=item.id, turns=build_turns(item.fields, settings)) for item in items]


def exemplar_rows(folder: Path) -> list[dict[str, Any]]:
    """The rows of all exemplar files of a task folder."""
    return [row for path in sorted(folder.glob(EXEMPLARS)) for row in read_exemplars(path)]


def read_exemplars(path: Path) -> list[dict[str, Any]]:
    """A YAML list of rows; PluginError naming file and entry for anything else."""
    where = f"{path.parent.name}/{path.name}"
    try:
        rows = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise PluginError(f"{where}: cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(rows, list):
        raise PluginError(f"{where}: a list of rows is expected")
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict) or "answer" not in row:
            raise PluginError(f"{where}: entry {number}: a mapping with an answer is expected")
    return rows


def _template(spec: TaskSpec, style: str) -> str:
    plain = spec.prompt.plain_template
    return plain if style == "plain" and plain is not None else spec.prompt.template


def _few_shot(spec: TaskSpec, *, template: str) -> tuple[Turn, ...]:
    if spec.prompt.few_shot is None:
        return ()
    turns: list[Turn] = []
    for number, row in enumerate(read_exemplars(spec.folder / spec.prompt.few_shot), start=1):
        try:
            turns += _pair(row, template, spec.prompt.answer_template)
        except PluginError as error:
            raise PluginError(
                f"{spec.folder.name}/{spec.prompt.few_shot}: entry {number}: {error}"
            ) from error
    return tuple(turns)


def _pair(row: Mapping[str, Any], template: str, answer_template: str) -> tuple[Turn, Turn]:
    return (
        Turn(role="user", content=fill(template, row)),
        Turn(role="assistant", content=fill(answer_template, row)),
    )
