"""Which GPUs there are and how much of their memory is free, asked of nvidia-smi: no torch, no context.

Ids are texts: an index (`0`), a device UUID (`GPU-…`) or that of a MIG slice (`MIG-…`), as
CUDA_VISIBLE_DEVICES takes them.
"""

from __future__ import annotations

import csv
import re
import subprocess
from collections.abc import Sequence
from xml.etree.ElementTree import Element, ParseError, fromstring

from posttrain.core.frozen import Frozen

_TIMEOUT_S = 20.0
_MIB = 1 << 20
_MIG_LINE = re.compile(r"\s+MIG .*Device\s+(\d+): \(UUID: (MIG-[^)]+)\)")
_GPU_LINE = re.compile(r"GPU (\d+): .*\(UUID: (GPU-[^)]+)\)")


class Gpu(Frozen):
    """One device, or one MIG slice of a device, that a CUDA process can use."""

    id: str
    """What CUDA_VISIBLE_DEVICES takes: an index, or the UUID of a slice."""
    uuid: str
    name: str
    total_bytes: int
    free_bytes: int | None = None
    """None where the driver does not tell."""


def list_gpus(*, visible: str | None = None, nvidia_smi: Sequence[str] = ("nvidia-smi",)) -> tuple[Gpu, ...]:
    """The GPUs that a process with CUDA_VISIBLE_DEVICES = `visible` sees, in its order.

    `visible` None: all of them. No driver, no answer in time: none.
    """
    devices = _devices(nvidia_smi)
    if visible is None:
        return tuple(devices)
    return tuple(_selected(visible, devices))


def _devices(command: Sequence[str]) -> list[Gpu]:
    fields = "index,uuid,name,memory.total,memory.free,mig.mode.current"
    rows = csv.reader(_ask(command, f"--query-gpu={fields}", "--format=csv,noheader,nounits").splitlines())
    whole = [[cell.strip() for cell in row] for row in rows]
    found = [row for row in whole if len(row) == 6 and row[0].isdigit()]
    slices = _slices(command) if any(row[5] == "Enabled" for row in found) else {}
    devices: list[Gpu] = []
    for index, uuid, name, total, free, mode in found:
        if mode == "Enabled":
            devices += slices.get(index, [])
        elif total.isdigit():
            devices.append(
                Gpu(id=index, uuid=uuid, name=name, total_bytes=int(total) * _MIB, free_bytes=_bytes(free))
            )
    return devices


def _slices(command: Sequence[str]) -> dict[str, list[Gpu]]:
    """MIG slices by the index of their device: names and UUIDs from -L, memory from the XML report."""
    memory = _slice_memory(_ask(command, "-q", "-x"))
    found: dict[str, list[Gpu]] = {}
    device = uuid = ""
    for line in _ask(command, "-L").splitlines():
        if match := _GPU_LINE.match(line):
            device, uuid = match[1], match[2]
        elif (match := _MIG_LINE.match(line)) and (uuid, match[1]) in memory:
            total, free = memory[uuid, match[1]]
            name = line.split("(", 1)[0].strip()
            found.setdefault(device, []).append(
                Gpu(id=match[2], uuid=match[2], name=name, total_bytes=total, free_bytes=free)
            )
    return found


def _slice_memory(report: str) -> dict[tuple[str, str], tuple[int, int | None]]:
    try:
        root = fromstring(report)  # noqa: S314 - the driver's own words
    except ParseError:
        return {}
    memory: dict[tuple[str, str], tuple[int, int | None]] = {}
    for gpu in root.iter("gpu"):
        for mig in gpu.iter("mig_device"):
            total = _bytes(_text(mig, "fb_memory_usage/total"))
            if total is not None:
                key = (_text(gpu, "uuid"), _text(mig, "index"))
                memory[key] = (total, _bytes(_text(mig, "fb_memory_usage/free")))
    return memory


def _selected(visible: str, devices: Sequence[Gpu]) -> list[Gpu]:
    """As the CUDA runtime reads the variable: in its order, up to the first id that names nothing."""
    chosen: list[Gpu] = []
    for wanted in (part.strip() for part in visible.split(",")):
        matches = [device for device in devices if _names(wanted, device)]
        if len(matches) != 1 or matches[0] in chosen:
            break
        chosen.append(matches[0])
    return chosen


def _names(wanted: str, device: Gpu) -> bool:
    if wanted.isdigit():
        return device.id == str(int(wanted))
    return len(wanted) > 4 and device.uuid.lower().startswith(wanted.lower())


def _ask(command: Sequence[str], *options: str) -> str:
    try:
        result = subprocess.run(
            [*command, *options],
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return result.stdout.decode("utf-8", "replace") if result.returncode == 0 else ""


def _text(element: Element, path: str) -> str:
    return (element.findtext(path) or "").strip()


def _bytes(mebibytes: str) -> int | None:
    number = mebibytes.removesuffix("MiB").strip()
    return int(number) * _MIB if number.isdigit() else None
