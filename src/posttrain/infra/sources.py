"""Where models and data may come from besides the lab home."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Sources:
    """Folders of the operator, all read only, and what a fetching child may know of the host."""

    adopted: tuple[Path, ...] = ()
    """Resource folders of other tools (AUTORL_FILE_PATH, FT_FILE_PATH); `models/`, `datasets/` are read."""
    data: tuple[Path, ...] = ()
    """Folders with rows of data sets (POSTTRAIN_DATA), one sub-folder a task."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """The host's variables; of these a fetching child gets proxies, certificates, pip's and the hub's."""
