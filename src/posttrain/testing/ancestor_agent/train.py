# ruff: noqa: T201 - a program of its own
"""Stands for a training script: reads model and data, writes a complete checkpoint."""

import argparse
import shutil
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--model", type=Path, required=True)
parser.add_argument("--data", type=Path, required=True)
parser.add_argument("--output", type=Path, required=True)
arguments = parser.parse_args()

rows = (arguments.data / "train.jsonl").read_text("utf-8").splitlines()
arguments.output.mkdir(parents=True, exist_ok=True)
for source in arguments.model.iterdir():
    if source.is_file():
        shutil.copyfile(source, arguments.output / source.name)
print(f"saw {len(rows)} rows, wrote {arguments.output}")
