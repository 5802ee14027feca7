"""What a task says about an OpenCompass configuration, and what its evaluator's name means."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Annotated, Any

from pydantic import AfterValidator, Field, ValidationError

from posttrain.core.errors import PluginError
from posttrain.core.frozen import Frozen

PREFIX = "opencompass:"
TOOL = "opencompass"
"""The tool environment it runs in."""
_CONFIG = re.compile(r"[A-Za-z0-9_]+(?:[.-][A-Za-z0-9_]+)*", re.ASCII)


def _inside(path: str) -> str:
    parts = PurePosixPath(path)
    if not path.strip() or parts.is_absolute() or ".." in parts.parts or "\0" in path:
        raise ValueError(f"{path!r} must be a path inside the tool's data folder")
    return path


def _rows(source: str) -> str:
    if source not in {"items", "exemplars"} and not source.startswith("items/"):
        raise ValueError(f"{source!r} is none of items, items/<stratum>, exemplars")
    return source


def _distinct(subsets: dict[str, str]) -> dict[str, str]:
    twice = [stratum for stratum in subsets.values() if list(subsets.values()).count(stratum) > 1]
    if twice:
        raise ValueError(f"two data sets for the stratum {twice[0]!r}: one of them would not count")
    return subsets


class OpenCompassSettings(Frozen):
    """`evaluator_settings` of a task that OpenCompass scores."""

    files: dict[Annotated[str, AfterValidator(_inside)], Annotated[str, AfterValidator(_rows)]] = Field(
        min_length=1
    )
    """Files below COMPASS_DATA_CACHE and what is written there, a row a line: `items` (all that are graded),
    `items/<stratum>`, or `exemplars` (worked examples of the folder, for configurations that show some)."""
    metric: str = "accuracy"
    """The number of the tool's result that is the score."""
    subsets: Annotated[dict[str, str], AfterValidator(_distinct)] = Field(default_factory=dict)
    """The configuration's data sets by their `abbr`, and the stratum each is asked; empty: one data set."""


def is_opencompass(evaluator: str) -> bool:
    """Whether an evaluator is a configuration of OpenCompass."""
    return evaluator.startswith(PREFIX)


def config_name(evaluator: str) -> str:
    """`gsm8k_gen_1d7fe4` of `opencompass:gsm8k_gen_1d7fe4`, or the dotted module path that stands there."""
    named = evaluator.removeprefix(PREFIX)
    if not _CONFIG.fullmatch(named):
        raise PluginError(f"evaluator: {named!r} is not the name of an OpenCompass configuration")
    return named


def read_settings(settings: Mapping[str, Any], *, where: str) -> OpenCompassSettings:
    """The settings of a task; PluginError naming the field."""
    try:
        return OpenCompassSettings.model_validate(settings)
    except ValidationError as error:
        fault = error.errors()[0]
        field = ".".join(str(part) for part in fault["loc"])
        raise PluginError(f"{where}: evaluator_settings.{field}: {fault['msg']}") from error
