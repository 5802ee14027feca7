#!/usr/bin/env bash
# Builds the environment: keeps a torch that can be imported, else installs one, then posttrain itself.
# Settings come from the Makefile; see there.
set -euo pipefail

VENV=${VENV:-.venv}
EXTRAS=${EXTRAS:-train,sweep,dev}
TORCH_SPEC=${TORCH_SPEC:-torch==2.13.0}
TORCH_CPU_INDEX=${TORCH_CPU_INDEX:-https://download.pytorch.org/whl/cpu}

say() { echo "install: $*"; }

new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

find_python() {
    for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11 python}; do
        if command -v "$candidate" >/dev/null && new_enough "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    say "no Python 3.11 or newer found; name one: make install PYTHON=/path/to/python3.11" >&2
    exit 2
}

make_environment() {
    [ -x "$VENV/bin/python" ] && return
    local python options=()
    python=$(find_python)
    if "$python" -c 'import torch' 2>/dev/null; then
        say "using the torch of $python"
        options=(--system-site-packages)
    fi
    if ! "$python" -m venv "${options[@]}" "$VENV"; then
        rm -rf "$VENV"
        say "$python cannot make environments; on Debian and Ubuntu: apt-get install python3-venv" >&2
        exit 2
    fi
}

has_nvidia_driver() { [ -e /proc/driver/nvidia/version ] || nvidia-smi -L >/dev/null 2>&1; }

index_answers() {
    timeout 5 "$VENV/bin/python" - "$TORCH_CPU_INDEX/torch/" <<'PROBE' >/dev/null 2>&1
import sys, urllib.request
urllib.request.urlopen(sys.argv[1], timeout=5).close()
PROBE
}

install_torch() {
    if "$VENV/bin/python" -c 'import torch' 2>/dev/null; then
        say "keeping torch $(torch_version)"
    elif has_nvidia_driver; then
        say "NVIDIA driver found: $TORCH_SPEC with CUDA"
        pip_install "$TORCH_SPEC"
    elif index_answers; then
        say "no NVIDIA driver: CPU build of $TORCH_SPEC from $TORCH_CPU_INDEX"
        pip_install --index-url "$TORCH_CPU_INDEX" "$TORCH_SPEC"
    else
        say "no NVIDIA driver, and $TORCH_CPU_INDEX does not answer within 5 s: plain $TORCH_SPEC, some minutes"
        pip_install "$TORCH_SPEC"
    fi
}

torch_version() { "$VENV/bin/python" -c 'from importlib.metadata import version; print(version("torch"))'; }

pip_install() { "$VENV/bin/python" -m pip install -qq --disable-pip-version-check "$@"; }

make_environment
case ",$EXTRAS," in
*,train,*)
    install_torch
    # no later package may replace it
    echo "torch==$(torch_version)" >"$VENV/torch.constraint"
    pip_install --constraint "$VENV/torch.constraint" --editable ".[$EXTRAS]"
    ;;
*) pip_install --editable ".[$EXTRAS]" ;;
esac
say "ready: $VENV/bin/posttrain"
