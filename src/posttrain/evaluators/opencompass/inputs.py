"""What an OpenCompass process finds in its folder: rows, a configuration, and a tokenizer that counts words.

work/
├── cache/…            COMPASS_DATA_CACHE: the rows, where its configuration looks for them
├── tokenizer/         it counts tokens only to cut what is too long, and nothing is
├── config.py
└── out/<time>/        what it writes: predictions, results, summary
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posttrain.core.errors import PluginError, UsageError
from posttrain.core.scores import Item
from posttrain.evaluators.opencompass.settings import OpenCompassSettings
from posttrain.infra.files import write_atomic, write_json, write_jsonl

MODEL = "checkpoint"
"""What the tool calls the model; the column of its tables."""
_LISTS = re.compile(r"^(\w*datasets)\s*=|\bimport\b.*?\b(\w*datasets)\b", re.MULTILINE)
_ENDLESS = 10**9
_QUERIES_PER_S = 2000
_ROLES = {
    "round": [{"role": "HUMAN", "api_role": "HUMAN"}, {"role": "BOT", "api_role": "BOT", "generate": True}],
    "reserved_roles": [{"role": "SYSTEM", "api_role": "SYSTEM"}],
}
"""Without it the tool writes a conversation as one turn."""
_TOKENIZER = {
    "version": "1.0",
    "added_tokens": [],
    "pre_tokenizer": {"type": "WhitespaceSplit"},
    "model": {"type": "WordLevel", "vocab": {"[UNK]": 0}, "unk_token": "[UNK]"},
}


@dataclass(frozen=True)
class Endpoint:
    """Where the tool reaches the engine."""

    url: str
    """Base URL, ends in /v1."""
    key: str


@dataclass(frozen=True)
class Dataset:
    """A configuration of the tool: its module and the lists of data sets in it."""

    module: str
    lists: tuple[str, ...]


def find_config(package: Path, name: str) -> Dataset:
    """The configuration `name`, or the end of its module path, below the tool's package folder.

    UsageError with similar names, or with all of that name where there are several.
    """
    root = package / "configs" / "datasets"
    stem = name.rpartition(".")[2]
    found = [
        path for path in sorted(root.rglob(f"{stem}.py")) if f".{_module(path, package)}".endswith(f".{name}")
    ]
    if not found:
        near = sorted({path.stem for path in root.rglob(f"{stem.split('_', 1)[0]}*.py")})[:8]
        raise UsageError(
            f"--task: OpenCompass has no configuration {name!r}. Similar ones: {', '.join(near) or 'none'}"
        )
    if len(found) > 1:
        modules = ", ".join(_module(path, package) for path in found)
        raise UsageError(f"--task: OpenCompass has several configurations {name!r}, say which: {modules}")
    path = found[0]
    lists = {one or other for one, other in _LISTS.findall(path.read_text("utf-8"))}
    if not lists:
        raise PluginError(f"opencompass: {name} defines no list of data sets")
    return Dataset(_module(path, package), tuple(sorted(lists)))


def _module(path: Path, package: Path) -> str:
    return ".".join(path.relative_to(package.parent).with_suffix("").parts)


@dataclass(frozen=True)
class Asked:
    """One evaluation by the tool."""

    dataset: Dataset
    settings: OpenCompassSettings
    items: Sequence[Item]
    exemplars: Sequence[Mapping[str, Any]]
    endpoint: Endpoint
    wave: int
    """Requests that it has open at a time."""
    max_new_tokens: int
    temperature: float
    timeout_s: float


def write_inputs(asked: Asked, work: Path) -> None:
    """Fill an empty folder. PluginError for a stratum without items."""
    for name, source in asked.settings.files.items():
        path = work / "cache" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_jsonl(path, _rows(asked, source), durable=False)
    (work / "tokenizer").mkdir()
    write_json(work / "tokenizer" / "tokenizer.json", _TOKENIZER, durable=False)
    write_json(
        work / "tokenizer" / "tokenizer_config.json",
        {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "[UNK]"},
        durable=False,
    )
    write_atomic(work / "config.py", config_text(asked, work), durable=False)


def _rows(asked: Asked, source: str) -> Iterable[Mapping[str, Any]]:
    if source == "exemplars":
        return asked.exemplars
    _, _, stratum = source.partition("/")
    rows = [item.fields for item in asked.items if not stratum or item.stratum == stratum]
    if not rows:
        raise PluginError(f"evaluator_settings.files: no item is of the stratum {stratum!r}")
    return rows


def config_text(asked: Asked, work: Path) -> str:
    """The configuration of this run, in the tool's own language."""
    dataset = asked.dataset
    model = {
        "abbr": MODEL,
        "meta_template": _ROLES,
        "path": str(work / "tokenizer"),
        "tokenizer_path": str(work / "tokenizer"),
        "key": asked.endpoint.key,
        "openai_api_base": asked.endpoint.url,
        "temperature": asked.temperature,
        "max_seq_len": _ENDLESS,
        "max_out_len": asked.max_new_tokens,
        "batch_size": asked.wave,
        "max_workers": asked.wave,
        "query_per_second": _QUERIES_PER_S,
        "retry": 1,
        "timeout": math.ceil(asked.timeout_s),
    }
    literals = ", ".join(f"{name}={value!r}" for name, value in model.items())
    return (
        "from mmengine.config import read_base\n\n"
        "with read_base():\n"
        f"    from {dataset.module} import {', '.join(dataset.lists)}\n\n"
        "from opencompass.models import OpenAISDK\n\n"
        f"datasets = [{', '.join(f'*{name}' for name in dataset.lists)}]\n"
        f"models = [dict(type=OpenAISDK, {literals})]\n"
    )
