"""The share of a GPU's memory that grading was promised: free, or the device is busy."""

from __future__ import annotations

import ctypes
import os
import time
from dataclasses import dataclass

import torch

from posttrain.core.engine import NumericPlan
from posttrain.core.errors import DeviceBusy, InfrastructureError

_PATIENCE_S = 60.0
_WORKING_SHARE = 0.15
"""Of grading's memory, for logits and activations; the context of the process comes off it as well."""
_EVERY_S = 2.0
_ARGUMENT_BYTES = 256
"""More than any of the driver's structures takes; zeros are its defaults."""


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
        free += torch.cuda.memory_reserved()  # of the share, this process may hold some already
        if free >= needed:
            return
        if time.monotonic() >= deadline:
            raise DeviceBusy(
                f"{free / 1e9:.1f} GB of device memory are free, grading's share is {needed / 1e9:.1f} GB"
            )
        time.sleep(_EVERY_S)


@dataclass(frozen=True)
class Room:
    """Bytes of the device that an engine may take beside its weights."""

    rows: int
    """For keys and values."""
    working: int
    """For logits and activations."""


def room(numeric: NumericPlan) -> Room:
    """From the plan's share of the total, never from what happens to be free."""
    _, total = torch.cuda.mem_get_info()
    share = int(numeric.memory_share * total)
    working = int(_WORKING_SHARE * share)
    return Room(rows=max(0, share - working - int(torch.cuda.memory_allocated())), working=working)


class DeviceContext:
    """What a process holds of a GPU besides its tensors: half a gigabyte and more for as long as it lives.

    Drivers since 570 can move that to the host's memory and back, which takes a moment; kernels that were
    built stay built. An older one cannot, and then only the end of the process gives it back.
    """

    def __init__(self) -> None:
        self._away = False

    def give_back(self) -> None:
        """Leave the device; until `take` nothing may be asked of it. InfrastructureError if it cannot be."""
        if self._away or not torch.cuda.is_initialized():
            return
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        self._call("cuCheckpointProcessLock", "cuCheckpointProcessCheckpoint")
        self._away = True

    def take(self) -> None:
        """Be there again; DeviceBusy if there is no room any more."""
        if not self._away:
            return
        try:
            self._call("cuCheckpointProcessRestore", "cuCheckpointProcessUnlock")
        except InfrastructureError as error:
            raise DeviceBusy(f"no room for the context: {error}") from error
        self._away = False

    def _call(self, *names: str) -> None:
        driver = ctypes.CDLL("libcuda.so.1")
        for name in names:
            function = getattr(driver, name, None)
            if function is None:
                raise InfrastructureError(f"the driver has no {name}")
            code = function(os.getpid(), ctypes.create_string_buffer(_ARGUMENT_BYTES))
            if code != 0:
                raise InfrastructureError(f"{name} ended with {code}")
