"""The frame of an agent's training script: stamped lines, an exit code, and failures told in one line."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import NoReturn

from posttrain.core.errors import PosttrainError

Log = Callable[[str], None]


def run_program(main: Callable[[Log], int]) -> NoReturn:
    """Call `main` with a log and exit with its code; what could be foreseen to fail is told in one line.

    Lines of the log carry the seconds since this call.
    """
    began = time.monotonic()

    def log(text: str) -> None:
        sys.stdout.write(f"[{time.monotonic() - began:6.1f} s] {text}\n")
        sys.stdout.flush()

    try:
        sys.exit(main(log))
    except (PosttrainError, OSError, ValueError) as error:
        log(f"{type(error).__name__}: {error}")
        sys.exit(1)
