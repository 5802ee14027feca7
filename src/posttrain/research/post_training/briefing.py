"""The facts of a run as text: read from the workspace once."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from posttrain.core.paths import Workspace
from posttrain.infra.gpus import list_gpus
from posttrain.research.digest import clip, fit

_SAMPLE_ROWS = 3
_READ_ROWS = 20_000


def briefing(workspace: Workspace, environ: Mapping[str, str], *, most: int) -> str:
    """Task, rules, prompt, data and machine, in at most `most` characters."""
    sections = [
        ("Task", _task(workspace, environ), 4),
        ("Data", _data(Path(environ["DATA_PATH"])), 4),
        ("The prompt that is graded", _prompt(workspace), 3),
        ("Rules", _read(workspace.rules), 2),
        ("Machine", machine(environ), 1),
    ]
    return fit(sections, most=most)


def manual(*, most: int) -> str:
    """What a script must do and may call."""
    return clip(_text("manual.md"), most)


def role() -> str:
    """Who the driver model is."""
    return _text("role.md").strip()


def skeleton() -> str:
    """The shortest training script."""
    return _text("skeleton.py.txt")


def _text(name: str) -> str:
    return (Path(__file__).parent / "texts" / name).read_text("utf-8")


def _task(workspace: Workspace, environ: Mapping[str, str]) -> str:
    name = f"Raise the score of {environ.get('BASE_MODEL')} on the task {environ.get('TASK')}."
    return f"{name}\n{_read(workspace.description)}"


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""


def _prompt(workspace: Workspace) -> str:
    """Settings and one rendered sample."""
    parts = []
    try:
        settings = json.loads(_read(workspace.prompt_settings))
        prompt, generation = settings["prompt"], settings["generation"]
        parts.append(
            f"style {prompt['style']}, template {prompt['template']!r}, answers read as "
            f"{prompt['answer_template']!r}, at most {generation['max_new_tokens']} new tokens, "
            f"temperature {generation['temperature']}"
        )
        sample = json.loads(_read(workspace.prompt_samples).splitlines()[0])
        parts.append(f"A rendered prompt:\n{clip(sample['text'], 1200)}")
    except (ValueError, KeyError, IndexError, TypeError):
        parts.append("(prompt/ of the workspace cannot be read)")
    return "\n".join(parts)


def _data(folder: Path) -> str:
    """How many rows, their fields with lengths, and the first few."""
    rows = list(_rows(folder / "train.jsonl"))
    if not rows:
        return "The task gives no rows."
    more = " or more" if len(rows) >= _READ_ROWS else ""
    lines = [f"{len(rows)}{more} rows in train.jsonl. Fields:"]
    names = Counter(name for row in rows for name in row)
    lines += [
        f"- {name}: {_statistics([row[name] for row in rows if name in row])}"
        for name, _ in names.most_common(12)
    ]
    shown = [clip(json.dumps(row, ensure_ascii=False), 700) for row in rows[:_SAMPLE_ROWS]]
    return "\n".join([*lines, "First rows:", *shown])


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            for number, line in enumerate(file):
                if number >= _READ_ROWS:
                    return
                try:
                    row = json.loads(line)
                except (ValueError, RecursionError):
                    continue
                if isinstance(row, dict):
                    yield row
    except OSError:
        return


def _statistics(values: Sequence[Any]) -> str:
    texts = [value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) for value in values]
    lengths = sorted(len(text) for text in texts)
    told = f"{lengths[0]} to {lengths[-1]} characters, half below {lengths[len(lengths) // 2] + 1}"
    counts = Counter(texts)
    if len(counts) <= 8:
        told += "; values " + ", ".join(f"{clip(text, 40)!r} {count}" for text, count in counts.most_common())
    else:
        told += f"; {len(counts)} different"
    return told


def machine(environ: Mapping[str, str]) -> str:
    """Cores, memory, GPUs."""
    cores = len(os.sched_getaffinity(0))
    memory = psutil.virtual_memory()
    told = [f"{cores} processor cores, {memory.total >> 30} GiB of memory, {memory.available >> 30} GiB free"]
    gpus = list_gpus(visible=environ.get("CUDA_VISIBLE_DEVICES"))
    told += [f"GPU {gpu.id}: {gpu.name}, {gpu.total_bytes >> 30} GiB" for gpu in gpus]
    return "; ".join(
        told if gpus else [*told, "no GPU: a small model learns from hundreds of short rows a minute"]
    )
