#!/bin/bash
# `python` and `posttrain` are the lab's own. What is printed goes to agent.log (posttrain logs RUN --which agent).
set -euo pipefail

python "$(dirname "$0")/train.py"
posttrain submit output/v1          # or plain curl, see instructions.md; hand in as often as you like
