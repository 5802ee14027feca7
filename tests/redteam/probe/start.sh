#!/bin/bash
# PROBE_TARGETS is a JSON object of paths, ports and pids; see targets.py
exec python "$(dirname "$0")/probe.py" "${PROBE_TARGETS:?}"
