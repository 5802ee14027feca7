#!/bin/bash
# One conversation over the whole budget; the exit code is the tool's own.
set -euo pipefail

exec "${POSTTRAIN_PYTHON:-python}" "$(dirname "$0")/agent.py" "$@"
