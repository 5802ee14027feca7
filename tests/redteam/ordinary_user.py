"""Running a program as an ordinary user from tests that run as root."""

from __future__ import annotations

import os
import sys
from pathlib import Path

UID = 65534


def as_ordinary_user(*argv: str) -> list[str]:
    """`argv` as run by an ordinary user, who can reach the Python in use even if it lies in a closed home."""
    if os.getuid() != 0:
        return list(argv)
    drop = ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups", "--inh-caps=-all", "--"]
    opened: list[str] = []
    for prefix in sorted({Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve()}):
        closed = [folder for folder in prefix.parents if not folder.stat().st_mode & 0o001]
        if closed:
            opened += ["--perms", "0755", "--tmpfs", str(closed[-1])]
            between = [folder for folder in reversed(prefix.parents) if closed[-1] in folder.parents]
            opened += [word for folder in between for word in ("--perms", "0755", "--dir", str(folder))]
            opened += ["--ro-bind", str(prefix), str(prefix)]
    return ["bwrap", "--dev-bind", "/", "/", *opened, "--", *drop, *argv]
