#!/bin/bash
exec python "$(dirname "$0")/toy.py" "$(dirname "$0")/steps.json"
