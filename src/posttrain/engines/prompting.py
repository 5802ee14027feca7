"""From a row to the tokens that a model is asked with: the one place where prompts are made.

The grader's workers and `posttrain.prompting` in an agent's workspace both come here, so training and
grading see the same tokens. Nothing is imported but the vocabulary; a tokenizer is handed in.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Mapping
from typing import Any

from posttrain.core.engine import PromptSettings, RenderedPrompt, Turn
from posttrain.core.errors import PluginError, UsageError

_FIELD = re.compile(r"\{\{|\}\}|\{([A-Za-z_][A-Za-z0-9_]*)\}")
_ASKS_DATE = re.compile(r"""strftime_now\s*\(\s*(["'])(.*?)\1\s*\)""")
_SENTINEL = "0123456789"


def fill(template: str, fields: Mapping[str, Any]) -> str:
    """`template` with every `{field}` replaced by that field of the row.

    `{{` and `}}` stand for one brace; any other brace stays as it is, and values are never read as
    templates themselves. Raises PluginError naming a field that the row lacks.
    """

    def value(match: re.Match[str]) -> str:
        name = match.group(1)
        if name is None:
            return match.group()[0]
        if name not in fields:
            known = ", ".join(sorted(fields)) or "none"
            raise PluginError(
                f"the prompt template {template[:60]!r} asks for {{{name}}}; fields of the row: {known}"
            )
        return _text(fields[name])

    return _FIELD.sub(value, template)


def _text(value: Any) -> str:
    """A field as a model reads it: lists and objects as JSON."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else str(value)


def build_turns(fields: Mapping[str, Any], settings: PromptSettings) -> tuple[Turn, ...]:
    """The turns that ask about one row: system text if there is one, exemplars, the question."""
    system = (Turn(role="system", content=settings.system),) if settings.system is not None else ()
    question = Turn(role="user", content=fill(settings.template, fields))
    return (*system, *settings.few_shot, question)


def gold_text(fields: Mapping[str, Any], settings: PromptSettings) -> str:
    """The row's answer as the model should write it."""
    text = fill(settings.answer_template, fields)
    spaced = settings.style == "plain" and not text[:1].isspace()
    return f" {text}" if spaced else text


def plain_text(turns: tuple[Turn, ...]) -> str:
    """Turns for a base without a chat template: `Question: …`, `Answer:`, blank lines between pairs."""
    parts: list[str] = []
    for turn in turns:
        if turn.role == "system":
            parts.append(f"{turn.content}\n\n")
        elif turn.role == "user":
            parts.append(f"Question: {turn.content}\nAnswer:")
        else:
            parts.append(f" {turn.content.strip()}\n\n")
    return "".join(parts)


def render_turns(tokenizer: Any, turns: tuple[Turn, ...], settings: PromptSettings) -> RenderedPrompt:
    """Text and token ids of a prompt, by the base's own tokenizer and template."""
    if settings.style == "plain":
        text = plain_text(turns)
        ids = tokenizer(text, add_special_tokens=True)["input_ids"]
        # a few tokenizers close every text by themselves; an open question must stay open
        while len(ids) > 1 and ids[-1] == tokenizer.eos_token_id:
            ids = ids[:-1]
    else:
        text = chat_text(tokenizer, turns, settings)
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    return RenderedPrompt(text=text, token_ids=tuple(ids))


def chat_text(tokenizer: Any, turns: tuple[Turn, ...], settings: PromptSettings) -> str:
    """The base's template applied to `turns`, up to the words with which an answer begins."""
    template: str = tokenizer.get_chat_template()
    if settings.frozen_date is not None and uses_date(template):
        template = frozen_template(template, settings.frozen_date)
    text: str = tokenizer.apply_chat_template(
        [turn.model_dump() for turn in turns],
        chat_template=template,
        tokenize=False,
        add_generation_prompt=True,
        **settings.chat_template_kwargs,
    )
    return text


def uses_date(template: str | None) -> bool:
    """Whether a chat template asks for today's date, which must then be frozen in the plan."""
    return template is not None and "strftime_now" in template


def end_of_turn_id(tokenizer: Any) -> int | None:
    """The token with which the template closes an answer; None without a template or such a token."""
    if not tokenizer.chat_template:
        return None
    turns = [{"role": "user", "content": "1"}, {"role": "assistant", "content": _SENTINEL}]
    text: str = tokenizer.apply_chat_template(turns, tokenize=False)
    tail = text.rpartition(_SENTINEL)[2]
    special = set(tokenizer.all_special_ids) | set(tokenizer.added_tokens_decoder)
    ids = tokenizer(tail, add_special_tokens=False)["input_ids"]
    return next((token for token in ids if token in special), None)


def stop_ids(tokenizer: Any, generation_eos: Any) -> tuple[int, ...]:
    """Tokens that end an answer: the tokenizer's, the generation config's, the template's end of turn."""
    listed = generation_eos if isinstance(generation_eos, list | tuple) else [generation_eos]
    found = {tokenizer.eos_token_id, end_of_turn_id(tokenizer), *listed}
    return tuple(sorted(token for token in found if token is not None))


def answer_ids(tokenizer: Any, text: str, settings: PromptSettings) -> tuple[int, ...]:
    """An answer's tokens and the token that ends it, as they follow a rendered prompt."""
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    end = end_of_turn_id(tokenizer) if settings.style == "chat" else None
    end = tokenizer.eos_token_id if end is None else end
    return tuple(ids) if end is None else (*ids, end)


def frozen_template(template: str, date: str) -> str:
    """A chat template in which every question for today's date has the answer `date` (YYYY-MM-DD).

    Raises UsageError for a template that computes the format of the date, which cannot be frozen.
    """
    day = datetime.date.fromisoformat(date)
    frozen = _ASKS_DATE.sub(lambda match: json.dumps(day.strftime(match.group(2))), template)
    if re.search(r"strftime_now\s*\(", frozen):
        raise UsageError("the base's chat template asks for the date in a form that cannot be frozen")
    return frozen
