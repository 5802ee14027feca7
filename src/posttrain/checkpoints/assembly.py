"""A complete model folder made of a submission's tensors and of all else of its base."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from posttrain.infra.model_folder import INDEX, model_files


@contextmanager
def complete_checkpoint(base: Path, submission: Path, target: Path) -> Iterator[Path]:
    """`target`, for as long as the block lasts: for code that loads a checkpoint itself.

    Config, tokenizer, template and generation settings are the base's. The weights take no room of their own
    where the file system has hard links.
    """
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    try:
        copy_all_but_weights(base, target)
        for name in filter(_holds_weights, model_files(submission)):
            _link(submission / name, target / name)
        yield target
    finally:
        shutil.rmtree(target, ignore_errors=True)


def copy_all_but_weights(base: Path, target: Path) -> None:
    """Config, tokenizer, template and generation settings of a model folder, into an existing one."""
    for name in model_files(base):
        if not _holds_weights(name):
            (target / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(base / name, target / name)


def _holds_weights(name: str) -> bool:
    return name.endswith(".safetensors") or name == INDEX


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
