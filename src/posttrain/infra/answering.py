"""How a child process answers: JSON lines on what was its standard output, and nothing else there."""

from __future__ import annotations

import os
import sys
from typing import BinaryIO

from posttrain.core.frozen import Frozen


def claim_stdout() -> BinaryIO:
    """What was standard output, for answers alone; everything printed from now on goes to standard error."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return answers


def send(pipe: BinaryIO, message: Frozen) -> None:
    """One line; BrokenPipeError if nobody is left to answer to."""
    pipe.write(message.model_dump_json().encode("utf-8") + b"\n")
    pipe.flush()
