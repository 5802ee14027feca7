#!/bin/bash
exec "$POSTTRAIN_PYTHON" -m posttrain.research
