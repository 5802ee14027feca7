"""The prompts of all command-line agents, from one template."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined

from posttrain.agents._cli import clock
from posttrain.agents.texts import RULES_SENTENCE

_TEMPLATE = Path(__file__).with_name("prompt.md.j2")
_DESCRIPTION_CHARS = 8000
_ROWS = 5
_ROW_CHARS = 600
_ENTRIES = 40
_GRADED = ("score", "improvement")


def render(turn: int, *, workspace: Path, env: Mapping[str, str], failed: int | None = None) -> str:
    """The prompt of a turn: the whole mission in the first, where things stand in the others."""
    left = clock.left(workspace, env)
    facts: dict[str, Any] = {
        "turn": turn,
        "task": env.get("TASK", ""),
        "base_model": env.get("BASE_MODEL", ""),
        "workspace": str(workspace),
        "left": clock.told(left),
        "left_s": max(0, int(left)),
        "resumed": bool(env.get("POSTTRAIN_RESUMED")),
        "rules": RULES_SENTENCE,
        "failed": failed,
    }
    if turn == 1:
        facts |= {
            "hardware": _hardware(),
            "description": _text(workspace / "description.md", _DESCRIPTION_CHARS),
            "listing": "\n".join(_listing(workspace)),
            "sample": "\n".join(_sample(Path(env.get("DATA_PATH", workspace / "data")) / "train.jsonl")),
        }
    else:
        facts["standing"] = _standing(workspace / "scores.json")
    # Markdown for a language model, not HTML: escaping would spoil quotes and arrows
    environment = Environment(autoescape=False, undefined=StrictUndefined)
    return environment.from_string(_TEMPLATE.read_text("utf-8")).render(facts).strip() + "\n"


def _text(path: Path, longest: int) -> str:
    try:
        text = path.read_text("utf-8", errors="replace").strip()
    except OSError:
        return "(there is no description)"
    return text if len(text) <= longest else f"{text[:longest]}\n… (go on in {path.name})"


def _listing(workspace: Path) -> list[str]:
    names = sorted(
        f"{path.name}/" if path.is_dir() else path.name
        for path in workspace.iterdir()
        if not path.name.startswith(".")
    )
    return names if len(names) <= _ENTRIES else [*names[:_ENTRIES], f"… {len(names) - _ENTRIES} more"]


def _sample(path: Path) -> list[str]:
    rows: list[str] = []
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            for _ in range(_ROWS):
                row = file.readline(1_000_000).rstrip("\r\n")
                if not row:
                    break
                rows.append(row if len(row) <= _ROW_CHARS else f"{row[:_ROW_CHARS]} …")
    except OSError:
        return []
    return rows


def _standing(path: Path) -> str:
    """What was handed in so far, in a sentence."""
    try:
        rows = [row for row in json.loads(path.read_text("utf-8")) if isinstance(row, dict)]
    except (OSError, ValueError, TypeError, RecursionError):
        rows = []
    scored = [row for row in rows if all(isinstance(row.get(name), int | float) for name in _GRADED)]
    if not rows:
        return "Nothing has been handed in yet: a run without a graded submission has no result."
    if not scored:
        return f"{len(rows)} submission(s), none of which could be graded: read `error` in `scores.json`."
    best = max(scored, key=lambda row: row["improvement"])  # of a score, less may be better
    return (
        f"{len(rows)} submission(s) so far, {len(scored)} graded; the best is {best.get('model_path')} with "
        f"{best['score']} (baseline {best.get('baseline_score')})."
    )


def _hardware() -> str:
    cores = len(os.sched_getaffinity(0))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{', '.join(_gpus()) or 'no GPU'}; {cores} processor cores; {memory:.0f} GiB of memory"


def _gpus() -> list[str]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    asked = [program, "--query-gpu=name,memory.total", "--format=csv,noheader"]
    try:
        told = subprocess.run(asked, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in told.splitlines() if line.strip()]
