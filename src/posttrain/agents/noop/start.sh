#!/bin/bash
# Hands in the base model as it is. Every report of this agent must say: improvement 0.
set -euo pipefail

mkdir -p "$OUTPUT_DIR/base"
cp -r "$MODEL_PATH/." "$OUTPUT_DIR/base"
chmod -R u+w "$OUTPUT_DIR/base"   # the model folder is read-only, its copy need not be
exec posttrain submit output/base
