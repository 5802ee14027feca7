"""Whether a command does anything: output, CPU or GPU. Standard library only."""

from __future__ import annotations

import shutil
import subprocess
import time

from posttrain.blueprints.command import CommandTree, cpu_seconds
from posttrain.blueprints.output import Output

_BUSY_SHARE = 0.02
"""Less CPU than this share of one core is what a process uses that only waits."""
_GPU_BUSY_PERCENT = 5
_GPU_EVERY_SAMPLES = 2
"""Asking costs more than looking at /proc."""


class Activity:
    """When the command last did anything: output, CPU or GPU."""

    def __init__(self, output: Output, *, sample_s: float) -> None:
        self._output = output
        self._sample_s = sample_s
        self._active_at = self._sampled_at = time.monotonic()
        self._seen_bytes = 0
        self._cpu_s = 0.0
        self._gpu_asked_at = float("-inf")

    def sample(self, command: CommandTree) -> bool:
        """Look again if it is time to; True if it was."""
        now = time.monotonic()
        if self._output.bytes != self._seen_bytes:
            self._seen_bytes = self._output.bytes
            self._active_at = now
        passed = now - self._sampled_at
        if passed < self._sample_s:
            return False
        self._sampled_at = now
        if now > self._active_at:
            cpu_s = cpu_seconds(command.members())
            if abs(cpu_s - self._cpu_s) > _BUSY_SHARE * passed or self._gpu_busy(now):
                self._active_at = now
            self._cpu_s = cpu_s
        return True

    @property
    def idle_s(self) -> float:
        return time.monotonic() - self._active_at

    def _gpu_busy(self, now: float) -> bool:
        program = shutil.which("nvidia-smi")
        if program is None or now - self._gpu_asked_at < _GPU_EVERY_SAMPLES * self._sample_s:
            return False
        self._gpu_asked_at = now
        argv = [program, "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
        try:
            done = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return False
        values = [int(line) for line in done.stdout.split() if line.isdigit()]
        return any(value >= _GPU_BUSY_PERCENT for value in values)
