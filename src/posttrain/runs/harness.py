"""What a harness has before there is a plan: a lab, a run's folder, a way to start children."""

from __future__ import annotations

from dataclasses import dataclass

from posttrain.core.paths import RunPaths
from posttrain.infra.processes import Spawner
from posttrain.runs.isolation import Doorway
from posttrain.runs.lab import Lab, Terminal
from posttrain.runs.signals import StopSignals


@dataclass(frozen=True)
class Harness:
    """One posttrain process at work on one run."""

    lab: Lab
    paths: RunPaths
    spawner: Spawner
    signals: StopSignals
    terminal: Terminal
    door: Doorway
