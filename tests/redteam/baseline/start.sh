#!/bin/bash
exec python "$(dirname "$0")/attack.py"
