"""Anthropic's Messages API as JSON: the same script for clients that speak it (Claude Code)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from posttrain.testing.llm_chat import BadRequest, Question, Reply, pieces

_REASONS = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens"}


def read_question(body: Any) -> Question:
    """The question in a request's body. Raises BadRequest."""
    if not isinstance(body, Mapping):
        raise BadRequest("the body is not a JSON object")
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(m, Mapping) for m in messages):
        raise BadRequest("messages: a list of messages is needed")
    others = [message for message in messages if message.get("role") not in {"assistant", "system"}]
    return Question(
        model=str(body.get("model", "scripted")),
        whole="\n".join(
            [_text(body.get("system")), *(_text(message.get("content")) for message in messages)]
        ),
        last=_text((others or messages)[-1].get("content")),
        stream=bool(body.get("stream")),
        stream_usage=True,
        tool=_forced_tool(body),
    )


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(_text(part) for part in content)
    if isinstance(content, Mapping):
        inner = content.get("text", content.get("content", content.get("input", "")))
        return _text(inner) if content.get("type") != "tool_use" else json.dumps(inner, ensure_ascii=False)
    return content if isinstance(content, str) else ""


def _forced_tool(body: Mapping[str, Any]) -> str | None:
    choice = body.get("tool_choice")
    kind = choice.get("type") if isinstance(choice, Mapping) else None
    if kind == "tool":
        return str(choice["name"]) if isinstance(choice, Mapping) else None
    names = [str(tool.get("name", "")) for tool in body.get("tools") or ()]
    return names[-1] if kind == "any" and names else None


def whole(reply: Reply) -> dict[str, Any]:
    """The answer in one piece."""
    return {
        **_head(reply),
        "content": _blocks(reply),
        "stop_reason": _REASONS.get(reply.finish_reason, reply.finish_reason),
        "usage": _usage(reply, reply.usage.completion_tokens),
    }


def events(reply: Reply, size: int) -> Iterator[dict[str, Any]]:
    """The answer in pieces, as a stream sends them."""
    begun = {**_head(reply), "content": [], "stop_reason": None, "usage": _usage(reply, 1)}
    yield {"type": "message_start", "message": begun}
    for index, block in enumerate(_blocks(reply)):
        spoken = block["type"] == "text"
        nothing: dict[str, Any] = {"text": ""} if spoken else {"input": {}}
        empty = block | nothing
        yield {"type": "content_block_start", "index": index, "content_block": empty}
        said = block["text"] if spoken else reply.tool_calls[index - (reply.text is not None)].arguments_text
        for piece in pieces(said, size):
            delta = (
                {"type": "text_delta", "text": piece}
                if spoken
                else {"type": "input_json_delta", "partial_json": piece}
            )
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    end = whole(reply)
    ending = {"stop_reason": end["stop_reason"], "stop_sequence": None}
    yield {"type": "message_delta", "delta": ending, "usage": end["usage"]}
    yield {"type": "message_stop"}


def _blocks(reply: Reply) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = [] if reply.text is None else [{"type": "text", "text": reply.text}]
    for index, call in enumerate(reply.tool_calls):
        arguments = call.arguments if isinstance(call.arguments, dict) else {}
        name = call.id or f"toolu_{reply.number}_{index}"
        blocks.append({"type": "tool_use", "id": name, "name": call.name, "input": arguments})
    return blocks


def _usage(reply: Reply, output: int) -> dict[str, int]:
    return {
        "input_tokens": reply.usage.prompt_tokens,
        "output_tokens": output,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
    }


def _head(reply: Reply) -> dict[str, Any]:
    return {
        "id": f"msg_{reply.number}",
        "type": "message",
        "role": "assistant",
        "model": reply.question.model,
        "stop_sequence": None,
    }
