"""Tasks that are configurations of OpenCompass: `opencompass:<configuration>`, on the rows of our tasks."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field

from posttrain.core.errors import UsageError
from posttrain.core.frozen import Frozen
from posttrain.core.scores import Metric
from posttrain.core.specs import PromptSpec, TaskSpec

NAME = "opencompass"
_TABLE = Path(__file__).with_name("opencompass.yaml")


class Family(Frozen):
    """Configurations that read the same rows."""

    like: str
    """Our task on these rows, with its variant."""
    same_prompt: tuple[str, ...] = ()
    files: dict[str, str]
    metric: str = "accuracy"
    subsets: dict[str, str] = Field(default_factory=dict)

    @property
    def settings(self) -> dict[str, Any]:
        """As evaluator_settings of a task."""
        return {"files": self.files, "metric": self.metric, "subsets": self.subsets}


@cache
def families() -> dict[str, Family]:
    """The families that ship, by the beginning of their configurations' names."""
    data = yaml.safe_load(_TABLE.read_text("utf-8"))
    return {name: Family.model_validate(fields) for name, fields in data.items()}


def family_of(configuration: str) -> Family | None:
    """The family with the longest name that the configuration begins with; None for an unknown one."""
    bare = configuration.rpartition(".")[2]
    known = [name for name in families() if bare == name or bare.startswith(f"{name}_")]
    return families()[max(known, key=len)] if known else None


def require_family(configuration: str) -> Family:
    """The family of a configuration; UsageError telling how to use another one."""
    family = family_of(configuration)
    if family is None:
        raise UsageError(
            f"--task: where OpenCompass' {configuration!r} finds its rows is known for "
            f"{', '.join(f'{name}_*' for name in families())}; for others make a task with evaluator: "
            f"opencompass:{configuration} and evaluator_settings.files (see docs/opencompass.md)"
        )
    return family


def spec_of(configuration: str, family: Family, like: TaskSpec) -> TaskSpec:
    """The task: rows, splits and generation of ours, questions and judgement of the tool's."""
    bare = configuration.rpartition(".")[2]
    prompt = like.prompt if bare in family.same_prompt else PromptSpec(style=like.prompt.style)
    return like.model_copy(
        update={
            "id": f"{NAME}:{configuration}",
            "variant": configuration,
            "rows_of": like.name,
            "title": f"{like.title}, asked and judged by OpenCompass ({bare})",
            "evaluator": f"{NAME}:{configuration}",
            "evaluator_settings": family.settings,
            "metric": Metric(name=family.metric),
            "prompt": prompt,
            "format_control": None,
        }
    )
