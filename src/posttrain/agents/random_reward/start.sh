#!/bin/bash
# the example agent's own script, so that the two differ in the reward alone
exec python "$(dirname "$0")/../example_agent/train.py"
