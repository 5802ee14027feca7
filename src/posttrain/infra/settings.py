"""What the environment says: the lab home, search paths, local sources.

Only the command line builds `Settings`; everything below it gets paths as parameters.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field, ValidationError
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from posttrain.core.errors import UsageError


def _path(value: object) -> object:
    """A path as people write it: `~` and `$NAME` are expanded, an empty value is none at all."""
    if not isinstance(value, str):
        return value
    return Path(os.path.expandvars(value)).expanduser().absolute() if value.strip() else None


def _paths(value: object) -> object:
    if not isinstance(value, str):
        return value
    return tuple(_path(part) for part in value.split(":") if part.strip())


def _flag(value: object) -> object:
    """`1`, `true`, `yes`, `on` in any case are true; everything else is false, as in the hub libraries."""
    return value.strip().lower() in {"1", "true", "yes", "on"} if isinstance(value, str) else value


_OptionalPath = Annotated[Path | None, BeforeValidator(_path)]
_PathList = Annotated[tuple[Path, ...], NoDecode, BeforeValidator(_paths)]
_Flag = Annotated[bool, BeforeValidator(_flag)]


class Settings(BaseSettings):
    """One field a variable; `.env.example` says the same for people."""

    model_config = SettingsConfigDict(frozen=True, extra="ignore", case_sensitive=True)

    home_folder: _OptionalPath = Field(default=None, validation_alias="POSTTRAIN_HOME")
    """The lab home as given; `home` falls back to ~/.posttrain."""
    benchmarks: _PathList = Field(default=(), validation_alias="POSTTRAIN_BENCHMARKS")
    """More folders with task folders in them."""
    agents: _PathList = Field(default=(), validation_alias="POSTTRAIN_AGENTS")
    """More folders with agent folders in them."""
    data: _PathList = Field(default=(), validation_alias="POSTTRAIN_DATA")
    """Local folders with the rows of hub data sets, one sub-folder a task."""
    smith_folder: _OptionalPath = Field(default=None, validation_alias="SMITH_BENCH_DIR")
    autorl_files: _OptionalPath = Field(default=None, validation_alias="AUTORL_FILE_PATH")
    """A resource folder of AutoRL-Bench, read only: `models/` and `datasets/` in it are adopted."""
    ft_files: _OptionalPath = Field(default=None, validation_alias="FT_FILE_PATH")
    """The same of FT-Agent."""
    hub_offline: _Flag = Field(default=False, validation_alias="HF_HUB_OFFLINE")
    """No call to the model hub."""

    @property
    def home(self) -> Path:
        return self.home_folder or Path.home() / ".posttrain"

    @property
    def smith(self) -> Path:
        """Where smith tasks are looked for; may not exist."""
        return self.smith_folder or Path.cwd().parent / "rl-smith" / "benchmarks"

    @property
    def adopted(self) -> tuple[Path, ...]:
        """Read-only resource folders of other tools, in order of preference."""
        return tuple(folder for folder in (self.autorl_files, self.ft_files) if folder is not None)


def read_settings() -> Settings:
    """Settings from the environment; UsageError names the variable that cannot be read."""
    try:
        return Settings()
    except ValidationError as error:
        first = error.errors()[0]
        raise UsageError(f"{first['loc'][0]}: {first['msg']}") from error
