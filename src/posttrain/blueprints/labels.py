"""How people label the parts of a blueprint, and how a labelled line is recognised."""

from __future__ import annotations

import re
from dataclasses import dataclass

from posttrain.blueprints.blueprint import Label

_TITLES: dict[Label, tuple[str, ...]] = {
    Label.PURPOSE: (
        "实验目的", "实验目标", "研究目的", "目的", "目标",
        "experiment purpose", "experiment goal", "purpose of the experiment", "purpose", "objective",
        "goal", "aim",
    ),
    Label.CODEBASE: (
        "主实验代码路径", "实验代码路径", "代码库路径", "代码路径", "代码目录", "主代码目录", "代码库",
        "项目路径",
        "main experiment code path", "main experiment codebase path", "main code path",
        "codebase directory",
        "codebase dir", "codebase path", "codebase", "code directory", "code folder", "code path",
        "code dir",
        "project directory", "project folder", "project path", "working directory",
    ),
    Label.PYTHON: (
        "python虚拟环境路径", "虚拟环境路径", "虚拟环境", "python解释器路径", "python解释器",
        "python可执行文件路径",
        "python可执行文件", "python路径", "解释器路径", "解释器",
        "python virtual environment path", "python virtual environment", "virtual environment",
        "python executable path", "python executable", "python interpreter", "python environment",
        "python path",
        "venv python", "interpreter", "python", "venv",
    ),
    Label.YAML: (
        "实验配置文件路径", "yaml配置文件路径", "配置文件路径", "实验配置文件", "配置文件", "配置路径",
        "yaml路径",
        "experiment configuration file path", "experiment config file path", "experiment config",
        "experiment yaml", "configuration file path", "configuration file", "configuration",
        "config file path",
        "config file", "config path", "config", "yaml config", "yaml path", "yaml file", "yaml",
    ),
    Label.COMMAND: (
        "执行训练的命令", "启动训练的命令", "训练命令", "启动命令", "运行命令", "执行命令", "命令",
        "command to execute training", "command to run", "training command", "launch command",
        "run command",
        "execution command", "command line", "command",
    ),
    Label.RESULTS: (
        "结果数据存储路径", "结果数据路径", "结果存储路径", "结果路径", "结果目录", "输出路径", "输出目录",
        "result data storage path", "result storage path", "results directory", "result directory",
        "results folder", "result folder", "result dir", "results dir", "results path", "result path",
        "results",
        "output directory", "output folder", "output dir", "output path",
    ),
    Label.MAX_TIME: (
        "最长运行时间", "最大运行时间", "运行时间上限", "运行时间限制", "运行时间", "时间限制",
        "时间上限", "最长时间",
        "最大时间", "时限",
        "maximum running time", "maximum runtime", "maximum run time", "maximum duration", "maximum time",
        "max runtime", "max duration", "max time", "time limit", "time budget",
    ),
    Label.NOTES: (
        "其他实验相关信息", "其他相关信息", "其他信息", "补充信息", "附加信息", "注意事项", "备注", "其他",
        "other experiment-related information", "other information", "additional information",
        "additional notes", "other notes", "notes", "remarks", "other",
    ),
    Label.SERVICE: ("服务启动命令", "服务命令", "service command", "service"),
    Label.SERVICE_READY: ("服务就绪条件", "服务就绪", "service ready when", "service ready", "ready when"),
}  # fmt: skip
_ALIASES = {"exp_other": Label.NOTES, "exp_other_info": Label.NOTES, "exp_note": Label.NOTES}

_DECORATION = re.compile(
    r"(?:\s+|>|(?P<heading>\#{1,6}(?=[\s\[【*`]))|[-+•](?=\s)|\*(?=[\s\[`])|\*{1,3}(?=\S)|__|`+|\|"
    r"|\d{1,2}\s*[.)、．](?!\d)|[（(]\d{1,2}[)）]|[①-⑩]|[一二三四五六七八九十]{1,2}[、.．]|\[[ xX]\](?=\s)"
    r"|[\u2190-\u2bff\U0001F000-\U0001FAFF]\ufe0f?)+"
)
_CLOSING = r"(?:\s|\*{1,3}(?=[\s:：=(（|]|$)|__(?=[\s:：=(（|]|$)|`+(?=[\s:：=|)）]|$))*"
_HINT = r"(?:[（(][^（）()]{1,40}[)）])?"
_COLON = r"(?P<colon>[:：=|]|——?|[-–—](?=\s)|$)"
_IDS = "|".join(sorted((*map(str, Label), *_ALIASES), key=len, reverse=True)).replace("_", r"(?:\\?_|-)")
_BY_ID = re.compile(
    rf"(?P<open>\\?\[|【)?\s*(?P<id>{_IDS})(?![A-Za-z0-9-]|_[A-Za-z])\s*(?P<close>\\?\]|】)?", re.IGNORECASE
)


def _title_pattern(titles: tuple[str, ...]) -> str:
    ordered = sorted(titles, key=len, reverse=True)
    return "|".join(
        re.escape(title).replace(r"\ ", r"[\s_-]*").replace("python", r"python\s*") for title in ordered
    )


_TITLE_OF = {
    label: re.compile(rf"(?:{_title_pattern(titles)}){_CLOSING}{_HINT}{_CLOSING}{_COLON}", re.IGNORECASE)
    for label, titles in _TITLES.items()
}
_BARE_TITLE = {
    label: re.compile(rf"(?:{_title_pattern(titles)}){_CLOSING}(?:[（(]\s*)?`?", re.IGNORECASE)
    for label, titles in _TITLES.items()
}
_HINT_AND_COLON = re.compile(rf"{_CLOSING}(?:{_HINT}){_CLOSING}(?:[:：=|]|[-–—](?=\s))?{_CLOSING}")
_ANY_TITLE = re.compile(rf"[^/`~.:：]{{1,40}}[:：]{_CLOSING}")
_PATHS = {Label.CODEBASE, Label.PYTHON, Label.YAML, Label.RESULTS}


@dataclass(frozen=True)
class Found:
    """A line that opens a part."""

    label: Label
    by_id: bool
    rest: str
    """What stands behind the label on the same line."""


def find_label(line: str) -> Found | None:
    """The label that this line opens with, by its id or else by a title that a colon or nothing follows."""
    decoration = _DECORATION.match(line)
    text = line[decoration.end() :] if decoration else line
    marked = bool(decoration and (decoration["heading"] or re.search(r"[*`|]|__", decoration.group())))
    return _by_id(text, marked=marked) or _by_title_and_id(text) or _by_title(text)


def is_heading(line: str) -> bool:
    """Whether the line is a Markdown heading."""
    return re.match(r"\s{0,3}#{1,6}\s", line) is not None


def _by_id(text: str, *, marked: bool) -> Found | None:
    match = _BY_ID.match(text)
    if match is None:
        return None
    name = re.sub(r"\\?_|-", "_", match["id"].lower())
    label = _ALIASES.get(name) or Label(name)
    closing = re.match(_CLOSING, text[match.end() :])
    rest = text[match.end() + (closing.end() if closing else 0) :]
    bracketed = bool(match["open"] and match["close"])
    if not bracketed and not marked and rest and not re.match(r"[:：=|（(—–-]", rest):
        return None if not _TITLE_OF[label].match(rest) else Found(label, True, _without_title(label, rest))
    return Found(label, True, _without_title(label, rest))


def _by_title_and_id(text: str) -> Found | None:
    """`实验目的 [exp_purpose]：…`, the title before the id."""
    for label, pattern in _BARE_TITLE.items():
        title = pattern.match(text)
        found = _by_id(text[title.end() :].lstrip(")）"), marked=True) if title else None
        if found is not None and found.label is label:
            return Found(label, True, _clean(re.sub(r"^[)）]\s*[:：=|]?\s*", "", found.rest)))
    return None


def _without_title(label: Label, rest: str) -> str:
    """Take a title, a hint in parentheses and a colon away from what follows an id."""
    title = _TITLE_OF[label].match(rest)
    if title:
        return _clean(rest[title.end() :])
    other = _ANY_TITLE.match(rest) if label in _PATHS and rest[:1] not in ":：" else None
    if other:
        return _clean(rest[other.end() :])
    hint = _HINT_AND_COLON.match(rest)
    return _clean(rest[hint.end() :] if hint else rest)


def _by_title(text: str) -> Found | None:
    for label, pattern in _TITLE_OF.items():
        match = pattern.match(text)
        if match:
            return Found(label, False, _clean(text[match.end() :]))
    return None


def _clean(text: str) -> str:
    """Without the end of emphasis that opened before the label, and without a table's last bar."""
    text = re.sub(r"^\s*(?:\*{2,3}|__)\s+", "", text.strip() + " ").strip()
    if text in {"|", ">", "|-", ">-"}:  # YAML's mark of a text that begins on the next line
        return ""
    return re.sub(r"\s*(?<!\\)\|$", "", text) if "|" in text else text
