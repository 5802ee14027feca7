"""OpenAI's chat completions as JSON: what a request says, and the forms of an answer to it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from posttrain.core.errors import PosttrainError
from posttrain.testing.llm_script import Step, ToolCall, Usage


@dataclass(frozen=True)
class Question:
    """What matters of a request."""

    model: str
    whole: str
    """All texts of it, tools' names included."""
    last: str
    """The last message that is not the model's own."""
    stream: bool
    stream_usage: bool
    tool: str | None
    """The tool that must be called, where the request insists on one."""


class BadRequest(PosttrainError):
    """No chat completion is asked for; says what is wrong."""


def read_question(body: Any) -> Question:
    """The question in a request's body. Raises BadRequest."""
    if not isinstance(body, Mapping):
        raise BadRequest("the body is not a JSON object")
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(m, Mapping) for m in messages):
        raise BadRequest("messages: a list of messages is needed")
    others = [message for message in messages if message.get("role") not in {"assistant", "system"}]
    options = body.get("stream_options")
    return Question(
        model=str(body.get("model", "scripted")),
        whole="\n".join(_text(message) for message in messages),
        last=_text((others or messages)[-1]),
        stream=bool(body.get("stream")),
        stream_usage=isinstance(options, Mapping) and bool(options.get("include_usage")),
        tool=_forced_tool(body),
    )


def _text(message: Mapping[str, Any]) -> str:
    """All words of a message: its text, and what the model asked of tools."""
    content = message.get("content")
    words = [content] if isinstance(content, str) else []
    if isinstance(content, list):
        words += [str(part.get("text", "")) for part in content if isinstance(part, Mapping)]
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        words.append(json.dumps(call.get("function"), ensure_ascii=False))
    return "\n".join(words)


def _forced_tool(body: Mapping[str, Any]) -> str | None:
    choice = body.get("tool_choice")
    if isinstance(choice, Mapping):
        return str(choice.get("function", {}).get("name", "")) or None
    if choice != "required":
        return None
    names = [str(tool.get("function", {}).get("name", "")) for tool in body.get("tools") or ()]
    return names[-1] if names else None


@dataclass(frozen=True)
class Reply:
    """The words and tool calls of one step, fitted to a question."""

    number: int
    """Of the request: makes ids that are the same in every play."""
    question: Question
    text: str | None
    tool_calls: Sequence[ToolCall]
    finish_reason: str
    usage: Usage

    @classmethod
    def of(cls, step: Step, question: Question, number: int) -> Reply:
        calls = tuple(step.tool_calls or ())
        text = step.text * step.repeat if step.text is not None else None
        if "json_" in step.model_fields_set:
            if question.tool is not None and isinstance(step.json_, dict):
                calls = (ToolCall(name=question.tool, arguments=step.json_),)
            else:
                text = json.dumps(step.json_, ensure_ascii=False)
        told = (text or "") + "".join(call.arguments_text for call in calls)
        usage = Usage(prompt_tokens=_tokens(question.whole), completion_tokens=_tokens(told))
        return cls(
            number=number,
            question=question,
            text=text,
            tool_calls=calls,
            finish_reason=step.finish_reason or ("tool_calls" if calls else "stop"),
            usage=step.usage or usage,
        )


def whole(reply: Reply) -> dict[str, Any]:
    """The answer in one piece."""
    message: dict[str, Any] = {"role": "assistant", "content": reply.text, "refusal": None}
    if reply.tool_calls:
        message["tool_calls"] = _calls(reply)
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": reply.finish_reason}
    return {**_head(reply, "chat.completion"), "choices": [choice], "usage": _usage(reply)}


def events(reply: Reply, size: int) -> Iterator[dict[str, Any]]:
    """The answer in pieces of `size` characters, as a stream sends them."""
    yield _chunk(reply, {"role": "assistant", "content": ""})
    for piece in pieces(reply.text or "", size):
        yield _chunk(reply, {"content": piece})
    for index, call in enumerate(_calls(reply)):
        arguments = call["function"]["arguments"]
        begun = call | {"function": {"name": call["function"]["name"], "arguments": ""}}
        yield _chunk(reply, {"tool_calls": [{"index": index, **begun}]})
        for piece in pieces(arguments, size):
            yield _chunk(reply, {"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    yield _chunk(reply, {}, finish_reason=reply.finish_reason)
    if reply.question.stream_usage:
        yield {**_head(reply, "chat.completion.chunk"), "choices": [], "usage": _usage(reply)}


def _chunk(reply: Reply, delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
    return {**_head(reply, "chat.completion.chunk"), "choices": [choice]}


def _head(reply: Reply, kind: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{reply.number}",
        "object": kind,
        "created": 1_700_000_000,  # the same in every play
        "model": reply.question.model,
    }


def _calls(reply: Reply) -> list[dict[str, Any]]:
    return [
        {
            "id": call.id or f"call_{reply.number}_{index}",
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments_text},
        }
        for index, call in enumerate(reply.tool_calls)
    ]


def _usage(reply: Reply) -> dict[str, int]:
    used = reply.usage
    return {**used.model_dump(), "total_tokens": used.prompt_tokens + used.completion_tokens}


def failure(message: str, *, kind: str = "invalid_request_error", code: str | None = None) -> dict[str, Any]:
    """The body of an HTTP error."""
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def _tokens(text: str) -> int:
    return -(-len(text) // 4)


def pieces(text: str, size: int) -> Iterator[str]:
    """The text in parts of `size` characters."""
    return (text[at : at + size] for at in range(0, len(text), size))
