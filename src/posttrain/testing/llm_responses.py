"""OpenAI's Responses API as JSON: the same script for clients that speak it (Codex, OpenHands)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from posttrain.testing.llm_chat import BadRequest, Question, Reply, pieces


def read_question(body: Any) -> Question:
    """The question in a request's body. Raises BadRequest."""
    if not isinstance(body, Mapping):
        raise BadRequest("the body is not a JSON object")
    asked = body.get("input")
    items = [{"role": "user", "content": asked}] if isinstance(asked, str) else asked
    if not isinstance(items, list) or not items or not all(isinstance(item, Mapping) for item in items):
        raise BadRequest("input: a text or a list of items is needed")
    others = [item for item in items if _is_others(item)]
    instructions = body.get("instructions")
    texts = [instructions] if isinstance(instructions, str) else []
    return Question(
        model=str(body.get("model", "scripted")),
        whole="\n".join([*texts, *(_text(item) for item in items)]),
        last=_text((others or items)[-1]),
        stream=bool(body.get("stream")),
        stream_usage=True,
        tool=_forced_tool(body),
    )


def _is_others(item: Mapping[str, Any]) -> bool:
    """Neither the model's own nor the standing orders."""
    own = item.get("role") in {"assistant", "system", "developer"}
    return not own and item.get("type") not in {"function_call", "reasoning"}


def _text(item: Mapping[str, Any]) -> str:
    content = item.get("content", item.get("output", item.get("arguments", "")))
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)


def _forced_tool(body: Mapping[str, Any]) -> str | None:
    choice = body.get("tool_choice")
    if isinstance(choice, Mapping):
        return str(choice.get("name", "")) or None
    names = [str(tool.get("name", "")) for tool in body.get("tools") or () if tool.get("type") == "function"]
    return names[-1] if choice == "required" and names else None


def whole(reply: Reply) -> dict[str, Any]:
    """The answer in one piece."""
    cut = reply.finish_reason == "length"
    used = reply.usage
    return {
        **_head(reply),
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "output": _items(reply),
        "usage": {
            "input_tokens": used.prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": used.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": used.prompt_tokens + used.completion_tokens,
        },
    }


def events(reply: Reply, size: int) -> Iterator[dict[str, Any]]:
    """The answer in pieces, as a stream sends them."""
    for number, event in enumerate(_events(reply, size)):
        yield {**event, "sequence_number": number}


def _events(reply: Reply, size: int) -> Iterator[dict[str, Any]]:
    begun = {**_head(reply), "status": "in_progress", "output": [], "usage": None}
    yield {"type": "response.created", "response": begun}
    for index, item in enumerate(_items(reply)):
        place = {"output_index": index, "item_id": item["id"]}
        yield {"type": "response.output_item.added", "output_index": index, "item": _empty(item)}
        if item["type"] == "message":
            yield from _spoken(item["content"][0], place, size)
        else:
            for piece in pieces(item["arguments"], size):
                yield {"type": "response.function_call_arguments.delta", **place, "delta": piece}
            done = {"name": item["name"], "arguments": item["arguments"]}
            yield {"type": "response.function_call_arguments.done", **place, **done}
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    end = whole(reply)
    yield {"type": f"response.{end['status']}", "response": end}


def _spoken(part: dict[str, Any], place: dict[str, Any], size: int) -> Iterator[dict[str, Any]]:
    place = {**place, "content_index": 0}
    yield {"type": "response.content_part.added", **place, "part": part | {"text": ""}}
    for piece in pieces(part["text"], size):
        yield {"type": "response.output_text.delta", **place, "delta": piece, "logprobs": []}
    yield {"type": "response.output_text.done", **place, "text": part["text"], "logprobs": []}
    yield {"type": "response.content_part.done", **place, "part": part}


def _empty(item: dict[str, Any]) -> dict[str, Any]:
    rest: dict[str, Any] = {"content": []} if item["type"] == "message" else {"arguments": ""}
    return {**item, **rest, "status": "in_progress"}


def _items(reply: Reply) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    if reply.text is not None:
        content = [{"type": "output_text", "text": reply.text, "annotations": [], "logprobs": []}]
        items.append(
            {
                "type": "message",
                "id": f"msg_{reply.number}",
                "status": "completed",
                "role": "assistant",
                "content": content,
            }
        )
    for index, call in enumerate(reply.tool_calls):
        items.append(
            {
                "type": "function_call",
                "id": f"fc_{reply.number}_{index}",
                "call_id": call.id or f"call_{reply.number}_{index}",
                "name": call.name,
                "arguments": call.arguments_text,
                "status": "completed",
            }
        )
    return items


def _head(reply: Reply) -> dict[str, Any]:
    return {
        "id": f"resp_{reply.number}",
        "object": "response",
        "created_at": 1_700_000_000,  # the same in every play
        "model": reply.question.model,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
    }
