"""tools/install.sh decides about torch as the Makefile promises; pip and Python are stubs that write down."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PYTHON = """#!/bin/sh
case "$1" in
-c) case "$2" in
    "import torch") [ -n "$HAS_TORCH" ] || [ -e "$LOG.torch" ] ;;
    *version*) echo "9.9.9+stub" ;;
    esac ;;
-) cat >/dev/null; [ -n "$INDEX_ANSWERS" ] ;;
-m) shift; echo "$@" >>"$LOG"; case "$*" in *torch==*) touch "$LOG.torch" ;; esac ;;
esac
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with an environment whose Python is the stub, and a nvidia-smi that finds nothing."""
    write_script(tmp_path / "venv" / "bin" / "python", PYTHON)
    write_script(tmp_path / "bin" / "nvidia-smi", '#!/bin/sh\n[ -n "$HAS_GPU" ]\n')
    return tmp_path


def write_script(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def install(place: Path, **environ: str) -> tuple[str, list[str]]:
    """What was said, and what pip was asked to do."""
    log = place / "pip.log"
    finished = subprocess.run(
        ["bash", str(ROOT / "tools" / "install.sh")],
        cwd=place,
        env={"PATH": f"{place / 'bin'}:{os.environ['PATH']}", "LOG": str(log), "VENV": "venv", **environ},
        capture_output=True,
        text=True,
        check=True,
    )
    return finished.stdout, log.read_text().splitlines()


needs_no_driver = pytest.mark.skipif(
    Path("/proc/driver/nvidia/version").exists(), reason="this machine has an NVIDIA driver"
)


def test_a_torch_that_can_be_imported_is_kept(place: Path) -> None:
    said, calls = install(place, HAS_TORCH="1")
    assert "keeping torch 9.9.9+stub" in said
    assert len(calls) == 1
    assert "--constraint venv/torch.constraint" in calls[0]
    assert (place / "venv" / "torch.constraint").read_text() == "torch==9.9.9+stub\n"


def test_with_an_nvidia_driver_the_plain_build_is_taken(place: Path) -> None:
    said, calls = install(place, HAS_GPU="1", INDEX_ANSWERS="1")
    assert "NVIDIA driver found" in said
    assert calls[0].endswith("torch==2.13.0")
    assert "--index-url" not in calls[0]


@needs_no_driver
def test_without_a_driver_the_cpu_index_is_asked(place: Path) -> None:
    said, calls = install(place, INDEX_ANSWERS="1", TORCH_SPEC="torch==2.12.0", TORCH_CPU_INDEX="https://cpu")
    assert "CPU build of torch==2.12.0 from https://cpu" in said
    assert calls[0].endswith("--index-url https://cpu torch==2.12.0")


@needs_no_driver
def test_a_silent_cpu_index_is_said_and_the_plain_spec_follows(place: Path) -> None:
    said, calls = install(place)
    assert "does not answer within 5 s: plain torch==2.13.0" in said
    assert calls[0].endswith(" torch==2.13.0")
    assert calls[1].endswith("--editable .[train,sweep,dev]")


def test_without_the_extra_train_no_torch_is_installed(place: Path) -> None:
    _, calls = install(place, EXTRAS="dev")
    assert calls == ["pip install -qq --disable-pip-version-check --editable .[dev]"]


def test_without_a_new_enough_python_the_remedy_is_named(place: Path) -> None:
    write_script(place / "old", "#!/bin/sh\nexit 1\n")
    finished = subprocess.run(
        ["bash", str(ROOT / "tools" / "install.sh")],
        cwd=place,
        env={"PATH": os.environ["PATH"], "VENV": "other", "PYTHON": str(place / "old")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 2
    assert "make install PYTHON=" in finished.stderr
