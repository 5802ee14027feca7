"""The grader's prompt, for agents: train on exactly what the model will be asked.

Reads `prompt/settings.json` of the workspace and the tokenizer of the base model; needs nothing else
of a run. Both places come from the environment of the agent ($WORKSPACE, $MODEL_PATH) unless given.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from posttrain.core.engine import PinnedPrompt, RenderedPrompt
from posttrain.core.errors import MissingExtra, UsageError
from posttrain.core.paths import Workspace
from posttrain.engines.prompting import answer_ids, build_turns, gold_text, render_turns

__all__ = ["Example", "Prompter", "render", "render_example", "stop_token_ids"]


class Example(NamedTuple):
    """A training pair: the loss belongs on `answer_ids`, the end token at their end included."""

    prompt_ids: tuple[int, ...]
    answer_ids: tuple[int, ...]


class Prompter:
    """The pinned prompt of one workspace."""

    def __init__(self, settings: PinnedPrompt, tokenizer: Any) -> None:
        self.settings = settings
        self.tokenizer = tokenizer

    @classmethod
    def of(cls, workspace: Path, model: Path) -> Prompter:
        """Read settings and tokenizer from a workspace and a base model's folder."""
        path = Workspace(workspace).prompt_settings
        if not path.is_file():
            raise UsageError(f"no pinned prompt at {path}: is WORKSPACE the workspace of a run?")
        return cls(PinnedPrompt.model_validate_json(path.read_bytes()), _tokenizer(model))

    def render(self, rows: Iterable[Mapping[str, Any]]) -> list[RenderedPrompt]:
        """Text and token ids for each row, as the grader feeds them to the model."""
        prompt = self.settings.prompt
        return [render_turns(self.tokenizer, build_turns(row, prompt), prompt) for row in rows]

    def example(self, row: Mapping[str, Any]) -> Example:
        """Prompt and answer of a row that has its answer."""
        prompt = self.settings.prompt
        question = render_turns(self.tokenizer, build_turns(row, prompt), prompt)
        answer = answer_ids(self.tokenizer, gold_text(row, prompt), prompt)
        return Example(question.token_ids, answer)


def render(
    rows: Iterable[Mapping[str, Any]], *, workspace: str | None = None, model: str | None = None
) -> list[RenderedPrompt]:
    """What the grader will feed the model for each row: objects with `.text` and `.token_ids`."""
    return _prompter(workspace, model).render(rows)


def render_example(
    row: Mapping[str, Any], *, workspace: str | None = None, model: str | None = None
) -> Example:
    """(prompt_ids, answer_ids) of a training row."""
    return _prompter(workspace, model).example(row)


def stop_token_ids(*, workspace: str | None = None) -> tuple[int, ...]:
    """The tokens that end an answer when it is graded."""
    path = Workspace(Path(workspace or _variable("WORKSPACE"))).prompt_settings
    return PinnedPrompt.model_validate_json(path.read_bytes()).stop_token_ids


def _prompter(workspace: str | None, model: str | None) -> Prompter:
    return _cached_prompter(workspace or _variable("WORKSPACE"), model or _variable("MODEL_PATH"))


@lru_cache(maxsize=4)
def _cached_prompter(workspace: str, model: str) -> Prompter:
    return Prompter.of(Path(workspace), Path(model))


def _variable(name: str) -> str:
    value = os.environ.get(name)
    if not value:
        raise UsageError(f"${name} is not set; an agent of a run has it, elsewhere pass it as an argument")
    return value


def _tokenizer(model: Path) -> Any:
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise MissingExtra("train", "rendering prompts") from error
    return AutoTokenizer.from_pretrained(str(model), trust_remote_code=False, local_files_only=True)
