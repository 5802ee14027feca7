"""The value of a part: Markdown taken away, content kept. Each function gives (value, line of the value)."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence

Line = tuple[int, str]
_FENCE = re.compile(r"\s*(?:[-*+>]\s+)*(`{3,}|~{3,})")
_SPAN = re.compile(r"(`+)(?!`)(.+?)(?<!`)\1(?!`)")
_LEAD = re.compile(r"\s*(?:>\s*|[-*+•]\s+|[:：]\s+)*")
_CJK = re.compile(r"[\u3000-\u30ff\u3400-\u9fff\uff00-\uffef]")
_QUOTES = {'"': '"', "'": "'", "“": "”", "‘": "’", "<": ">", "「": "」", "《": "》"}


def text_value(lines: Sequence[Line]) -> tuple[str, int]:
    """Free text: paragraphs and lists kept, indentation, quote marks and wrapped lines undone."""
    filled = [(number, line) for number, line in lines if line.strip()]
    if not filled:
        return "", 0
    content, line = _fenced(lines)
    if content is not None and len(filled) == len(content) + 2:
        return "\n".join(content).strip(), line
    paragraphs: list[str] = []
    ended = True
    for _, raw in lines:
        text = re.sub(r"^\s*(?:>\s?)+|^\s*[:：]\s+", "", raw).strip()
        text = re.sub(r"\s*(?<!\\)\|$", "", text) if text.startswith("|") else text
        if not text:
            ended = True
        elif ended or re.match(r"[-*+•]\s|\d{1,2}[.)、]\s|#|\||`{3}", text):
            paragraphs.append(text)
            ended = text.startswith("#")
        else:
            paragraphs[-1] = _join(paragraphs[-1], text)
    if len(paragraphs) == 1:  # a list of one item is a sentence
        paragraphs[0] = re.sub(r"^[-*+•]\s+", "", paragraphs[0])
    return "\n".join(_unwrapped(paragraph) for paragraph in paragraphs).strip(), filled[0][0]


def line_value(lines: Sequence[Line]) -> tuple[str, int]:
    """One line: a path or a time limit."""
    content, line = _fenced(lines)
    if content is not None:
        filled = [text.strip() for text in content if text.strip()]
        return (_unquoted(filled[0]), line) if filled else ("", line)
    for number, raw in lines:
        text = _LEAD.sub("", raw, count=1).strip()
        if text:
            return _plain_line(text), number
    return "", 0


def command_value(lines: Sequence[Line]) -> tuple[str, int]:
    """A shell command of one or more lines, as it would be typed."""
    content, line = _fenced(lines)
    if content is not None:
        return _without_prompts(content), line
    spans = [(number, match) for number, raw in lines for match in _SPAN.finditer(raw)]
    first = next(((number, raw) for number, raw in lines if raw.strip()), None)
    if first is None:
        return "", 0
    opening = _LEAD.sub("", first[1], count=1).strip()
    if spans and (opening.startswith("`") or re.search(r"[:：]\s*$", opening)):
        number, match = spans[0]
        return _without_prompts([match[2]]), number
    return _unquoted(_without_prompts(_first_paragraph(lines))), first[0]


def _fenced(lines: Sequence[Line]) -> tuple[list[str] | None, int]:
    """The content of the first code fence, dedented, and the line where it begins."""
    for index, (number, raw) in enumerate(lines):
        mark = _FENCE.match(raw)
        if not mark or raw.strip("`~ ").find("`") >= 0:
            continue
        content: list[str] = []
        for _, inner in lines[index + 1 :]:
            if _FENCE.match(inner) and inner.strip().startswith(mark[1]):
                break
            content.append(re.sub(r"^\s*>\s?", "", inner) if raw.lstrip().startswith(">") else inner)
        return textwrap.dedent("\n".join(content)).strip("\n").split("\n"), number + 1
    return None, 0


def _first_paragraph(lines: Sequence[Line]) -> list[str]:
    taken: list[str] = []
    for _, raw in lines:
        if raw.strip():
            taken.append(_LEAD.sub("", raw, count=1) if not taken else raw.strip())
        elif taken:
            break
    return taken


def _without_prompts(lines: Sequence[str]) -> str:
    """`$ ` at the start of lines is a prompt, not a command."""
    first = next((line for line in lines if line.strip()), "")
    if re.match(r"\s*\$\s", first):
        lines = [re.sub(r"^\s*\$\s+", "", line) for line in lines]
    return "\n".join(lines).strip()


def _plain_line(text: str) -> str:
    text = re.sub(r"\s*(?<!\\)\|\s*$", "", text)
    span = _SPAN.match(text)
    if span:
        return _unquoted(span[2].strip())
    link = re.fullmatch(r"\[([^\]]+)\]\(([^)]+)\)[。；;,，]?", text)
    if link:
        return link[1].strip("` ")
    text = re.sub(r"(?<=\S)\s*（[^（）]*）$", "", text.rstrip("。；;，, "))
    text = re.sub(r"^(?:\*{1,3}|__)(.+?)(?:\*{1,3}|__)$", r"\1", text)
    return _unquoted(re.sub(r"\\([_*\[\]()#-])", r"\1", text))


def _unquoted(text: str) -> str:
    closing = _QUOTES.get(text[:1])
    whole = closing is not None and text.find(closing, 1) == len(text) - 1 > 0
    return text[1:-1].strip() if whole else text


def _unwrapped(paragraph: str) -> str:
    """Without emphasis, code marks or quotation marks around the whole."""
    whole = re.fullmatch(r"(\*{1,3}|__|_|`)([^*`]+)\1", paragraph)
    return _unquoted(whole[2].strip() if whole else paragraph)


def _join(first: str, second: str) -> str:
    """Two lines of one paragraph; Chinese text takes no space where it was wrapped."""
    together = _CJK.match(first[-1]) and _CJK.match(second[0])
    return first + ("" if together else " ") + second
