#!/bin/bash
exec python "$(dirname "$0")/train.py"
