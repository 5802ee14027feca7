"""Google's generateContent as JSON: the same script for clients that speak it (Gemini CLI)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from posttrain.testing.llm_chat import BadRequest, Question, Reply, pieces

_REASONS = {"stop": "STOP", "tool_calls": "STOP", "length": "MAX_TOKENS"}


def read_question(body: Any, *, model: str, stream: bool) -> Question:
    """The question in a request's body; model and way of answering stand in its path. Raises BadRequest."""
    if not isinstance(body, Mapping):
        raise BadRequest("the body is not a JSON object")
    contents = body.get("contents")
    if not isinstance(contents, list) or not contents or not all(isinstance(c, Mapping) for c in contents):
        raise BadRequest("contents: a list of contents is needed")
    others = [content for content in contents if content.get("role") != "model"]
    return Question(
        model=model,
        whole="\n".join(_text(content) for content in (body.get("systemInstruction"), *contents)),
        last=_text((others or contents)[-1]),
        stream=stream,
        stream_usage=True,
        tool=_forced_tool(body),
    )


def _text(content: Any) -> str:
    parts = content.get("parts") if isinstance(content, Mapping) else None
    words: list[str] = []
    for part in parts if isinstance(parts, list) else ():
        if isinstance(part, Mapping):
            words.append(part["text"] if isinstance(part.get("text"), str) else _as_json(part))
    return "\n".join(words)


def _as_json(part: Mapping[str, Any]) -> str:
    return json.dumps(part, ensure_ascii=False)


def _forced_tool(body: Mapping[str, Any]) -> str | None:
    settings = body.get("toolConfig")
    calling = settings.get("functionCallingConfig") if isinstance(settings, Mapping) else None
    if not isinstance(calling, Mapping) or calling.get("mode") != "ANY":
        return None
    declared = [
        str(one.get("name", ""))
        for tool in body.get("tools") or ()
        for one in tool.get("functionDeclarations") or ()
    ]
    return declared[-1] if declared else None


def whole(reply: Reply) -> dict[str, Any]:
    """The answer in one piece."""
    return _candidate(reply, _parts(reply), last=True)


def events(reply: Reply, size: int) -> Iterator[dict[str, Any]]:
    """The answer in pieces, as a stream sends them; calls of tools are never cut."""
    for piece in pieces(reply.text or "", size):
        yield _candidate(reply, [{"text": piece}], last=False)
    yield _candidate(reply, [part for part in _parts(reply) if "text" not in part], last=True)


def _candidate(reply: Reply, parts: list[dict[str, Any]], *, last: bool) -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"role": "model", "parts": parts}, "index": 0}
    if last:
        candidate["finishReason"] = _REASONS.get(reply.finish_reason, reply.finish_reason)
    used = reply.usage
    return {
        "candidates": [candidate],
        "usageMetadata": {
            "promptTokenCount": used.prompt_tokens,
            "candidatesTokenCount": used.completion_tokens,
            "totalTokenCount": used.prompt_tokens + used.completion_tokens,
        },
        "modelVersion": reply.question.model,
        "responseId": f"response-{reply.number}",
    }


def _parts(reply: Reply) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = [] if reply.text is None else [{"text": reply.text}]
    for index, call in enumerate(reply.tool_calls):
        arguments = call.arguments if isinstance(call.arguments, dict) else {}
        name = call.id or f"call_{reply.number}_{index}"
        parts.append({"functionCall": {"id": name, "name": call.name, "args": arguments}})
    return parts
