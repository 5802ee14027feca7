"""Task folders in the ancestor's smith format: config.yaml, eval.py, data/train.jsonl."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from posttrain.benchmarks import opencompass
from posttrain.core.errors import PluginError
from posttrain.core.faults import first_fault

CONFIG = "config.yaml"
PREFIX = "smith-"

_SAFE = re.compile(r"[\w][\w.\-]*")
"""Names in any script, but nothing that could lead out of a folder."""


class SmithConfig(BaseModel):
    """config.yaml; fields that we do not know are left alone, as the ancestor does."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    name: str = Field(min_length=1)
    eval_mode: Literal["per_sample", "opencompass"] = "per_sample"
    opencompass_dataset: str | None = None
    opencompass_files: dict[str, str] = Field(default_factory=dict)
    """Ours: where a configuration that we do not know reads its rows."""
    opencompass_metric: str | None = None
    """Ours: which of the tool's numbers counts."""
    description: str = ""
    expose_files: tuple[str, ...] = ()


def folders(root: Path) -> list[Path]:
    """The smith folders below `root`, sorted; names that start with `_` are skipped."""
    if not root.is_dir():
        return []
    return [
        folder
        for folder in sorted(root.iterdir())
        if (folder / CONFIG).is_file() and not folder.name.startswith("_") and _SAFE.fullmatch(folder.name)
    ]


def task_name(folder: Path) -> str:
    """`smith-<folder name>`: the folder's own name, so that two folders can never collide."""
    return PREFIX + folder.name


def read_config(folder: Path) -> SmithConfig:
    """The folder's config.yaml; PluginError naming file and field."""
    where = f"{folder.name}/{CONFIG}"
    try:
        data = yaml.safe_load((folder / CONFIG).read_text("utf-8"))
        return SmithConfig.model_validate(data)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise PluginError(f"{where}: cannot be read: {' '.join(str(error).split())}") from error
    except ValidationError as error:
        raise PluginError(f"{where}: {first_fault(error, whole='config')}") from error


def manifest(folder: Path) -> dict[str, Any]:
    """The folder as fields of benchmark.yaml. Its rows lie in data/, and splits are the default ones."""
    config = read_config(folder)
    return {
        "title": config.name,
        **_judged_by(config, where=f"{folder.name}/{CONFIG}"),
        "prompt": {"template": "{question}", "answer_template": "{answer}"},
        "generation": {"max_new_tokens": 2048},
        "expose": list(config.expose_files),
    }


def _judged_by(config: SmithConfig, *, where: str) -> dict[str, Any]:
    """The evaluator and what it has to know."""
    if config.eval_mode == "per_sample":
        return {"evaluator": "per_sample"}
    configuration = config.opencompass_dataset
    if not configuration:
        raise PluginError(f"{where}: opencompass_dataset: needed for eval_mode opencompass")
    family = opencompass.family_of(configuration)
    files = config.opencompass_files or (family.files if family else {})
    if not files:
        raise PluginError(
            f"{where}: opencompass_files: needed for {configuration}: where below COMPASS_DATA_CACHE it "
            "reads its rows, e.g. {data/mine/test.jsonl: items}"
        )
    metric = config.opencompass_metric or (family.metric if family else "accuracy")
    return {
        "evaluator": f"{opencompass.NAME}:{configuration}",
        "evaluator_settings": {"files": files, "metric": metric},
        "metric": {"name": metric},
    }


def is_smith(folder: Path) -> bool:
    """Whether a task folder is in the smith format."""
    return (folder / CONFIG).is_file() and not (folder / "benchmark.yaml").is_file()


def description(folder: Path) -> str:
    """What config.yaml says about the task, for a folder without description.md."""
    config = read_config(folder)
    return f"# {config.name}\n\n{config.description}\n"
