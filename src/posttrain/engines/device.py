"""The share of a GPU's memory that grading was promised: free, or the device is busy."""

from __future__ import annotations

import time

import torch

from posttrain.core.engine import NumericPlan
from posttrain.core.errors import DeviceBusy

_PATIENCE_S = 60.0
_EVERY_S = 2.0


def claim_memory(numeric: NumericPlan, *, patience_s: float = _PATIENCE_S) -> None:
    """Limit this process to its share of the device's total memory, and wait until that much is free.

    Raises DeviceBusy when it is not free in time; the plan is never made smaller instead. Does nothing
    on a CPU.
    """
    if numeric.device.startswith("cuda"):
        torch.cuda.set_per_process_memory_fraction(numeric.memory_share)
        wait_for_memory(numeric, patience_s=patience_s)


def wait_for_memory(numeric: NumericPlan, *, patience_s: float = _PATIENCE_S) -> None:
    """Wait until grading's share is free; DeviceBusy when it is not in time. Does nothing on a CPU."""
    if not numeric.device.startswith("cuda"):
        return
    deadline = time.monotonic() + patience_s
    while True:
        free, total = torch.cuda.mem_get_info()
        needed = numeric.memory_share * total
        if free >= needed:
            return
        if time.monotonic() >= deadline:
            raise DeviceBusy(
                f"{free / 1e9:.1f} GB of device memory are free, grading's share is {needed / 1e9:.1f} GB"
            )
        time.sleep(_EVERY_S)
