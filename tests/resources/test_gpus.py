from __future__ import annotations

import stat
from pathlib import Path

import pytest

from posttrain.infra.gpus import list_gpus

GIB = 1 << 30
WHOLE = """\
0, GPU-aaaa1111-0000, NVIDIA H200, 143771, 143000, Disabled
1, GPU-bbbb2222-0000, NVIDIA H200, 143771, 1024, Disabled
2, GPU-cccc3333-0000, NVIDIA T4, 15360, [N/A], [N/A]
"""
MIXED = """\
0, GPU-aaaa1111-0000, NVIDIA A100, 40960, 40000, Enabled
1, GPU-bbbb2222-0000, NVIDIA A100, 40960, 40000, Disabled
"""
LISTED = """\
GPU 0: NVIDIA A100 (UUID: GPU-aaaa1111-0000)
  MIG 3g.20gb     Device  0: (UUID: MIG-11111111-aaaa)
  MIG 1g.5gb      Device  1: (UUID: MIG-22222222-aaaa)
GPU 1: NVIDIA A100 (UUID: GPU-bbbb2222-0000)
"""
REPORT = """\
<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log><gpu id="0"><uuid>GPU-aaaa1111-0000</uuid><mig_devices>
<mig_device><index>0</index>
<fb_memory_usage><total>20480 MiB</total><free>20000 MiB</free></fb_memory_usage></mig_device>
<mig_device><index>1</index>
<fb_memory_usage><total>5120 MiB</total><free>N/A</free></fb_memory_usage></mig_device>
</mig_devices></gpu></nvidia_smi_log>
"""


def _driver(folder: Path, query: str, *, listed: str = "", report: str = "", code: int = 0) -> list[str]:
    """An nvidia-smi that says what a real one would."""
    for name, text in (("query", query), ("listed", listed), ("report", report)):
        (folder / name).write_text(text, "utf-8")
    script = folder / "nvidia-smi"
    script.write_text(
        f'#!/bin/sh\ncd "{folder}"\n'
        f'case "$1" in -L) cat listed;; -q) cat report;; *) cat query;; esac\nexit {code}\n',
        "utf-8",
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return [str(script)]


def test_every_gpu_is_listed_with_its_memory(tmp_path: Path) -> None:
    gpus = list_gpus(nvidia_smi=_driver(tmp_path, WHOLE))
    assert [gpu.id for gpu in gpus] == ["0", "1", "2"]
    assert gpus[0].total_bytes == 143_771 << 20
    assert gpus[1].free_bytes == GIB
    assert gpus[2].free_bytes is None


def test_slices_take_the_place_of_their_device(tmp_path: Path) -> None:
    gpus = list_gpus(nvidia_smi=_driver(tmp_path, MIXED, listed=LISTED, report=REPORT))
    assert [gpu.id for gpu in gpus] == ["MIG-11111111-aaaa", "MIG-22222222-aaaa", "1"]
    assert (gpus[0].total_bytes, gpus[0].free_bytes) == (20 * GIB, 20000 << 20)
    assert (gpus[1].total_bytes, gpus[1].free_bytes) == (5 * GIB, None)


@pytest.mark.parametrize(
    ("visible", "ids"),
    [
        (None, ["0", "1", "2"]),
        ("1,0", ["1", "0"]),
        ("GPU-bbbb2222-0000", ["1"]),
        ("GPU-cccc", ["2"]),
        ("0,7,1", ["0"]),
        ("1,1", ["1"]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
    ],
)
def test_visible_devices_are_read_as_cuda_reads_them(
    tmp_path: Path, visible: str | None, ids: list[str]
) -> None:
    gpus = list_gpus(visible=visible, nvidia_smi=_driver(tmp_path, WHOLE))
    assert [gpu.id for gpu in gpus] == ids


def test_a_slice_is_chosen_by_its_uuid(tmp_path: Path) -> None:
    driver = _driver(tmp_path, MIXED, listed=LISTED, report=REPORT)
    assert [gpu.id for gpu in list_gpus(visible="MIG-22222222-aaaa", nvidia_smi=driver)] == [
        "MIG-22222222-aaaa"
    ]


def test_without_a_driver_there_are_none(tmp_path: Path) -> None:
    assert list_gpus(nvidia_smi=[str(tmp_path / "nothing")]) == ()
    assert list_gpus(nvidia_smi=_driver(tmp_path, "NVIDIA-SMI has failed", code=9)) == ()
    assert list_gpus(nvidia_smi=_driver(tmp_path, "No devices were found\n")) == ()
