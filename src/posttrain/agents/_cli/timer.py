"""The `timer` command of command-line agents: how much of the run's time is left.

timer              1h 12m 05s left (4325 seconds), until 2026-02-11 16:30:00
timer --seconds    4325
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from posttrain.agents._cli.clock import deadline, told


def main() -> int:
    """Print the time that is left; 1 once it is over."""
    workspace = Path(os.environ.get("WORKSPACE", "."))
    end = deadline(workspace, os.environ)
    seconds = end - time.time()
    if "--seconds" in sys.argv[1:]:
        print(max(0, int(seconds)))
    else:
        until = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(end))
        print(f"{told(seconds)} left ({max(0, int(seconds))} seconds), until {until}")
    return 0 if seconds > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
