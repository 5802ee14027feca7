"""tmux by its command line, told around its traps.

tmux rewrites names (`a.b` becomes `a_b`), matches them by prefix (`train_1` finds `train_10`), splits what
is typed at a trailing `;`, and reads `$HOME` or `=q` as something else than a name. So a session is only
ever addressed by its id, names are compared here, and what is typed is short and quoted; everything long
belongs in a script.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from posttrain.core.errors import InfrastructureError, UsageError
from posttrain.core.frozen import Frozen

SHELLS = frozenset({"bash", "zsh", "sh", "fish", "csh", "tcsh", "ksh", "dash", "ash"})
_TIMEOUT_S = 15.0
_GONE = re.compile(
    r"no server running|error connecting to .*\((?:No such file or directory|Connection refused)\)"
    r"|can't find (?:session|pane|window)|server exited|lost server|no sessions"
)


class TmuxError(InfrastructureError):
    """tmux did not answer, or answered something that says nothing about the session."""


class Session(Frozen):
    """One session; id and creation time together name it for ever, across renaming and a new server."""

    id: str
    created: int
    name: str


class Pane(Frozen):
    """The process that a pane was opened with, and the name of what runs in its foreground."""

    pid: int
    command: str
    dead: bool


class Tmux:
    """The tmux server of one user. `env` is what a server started by us gets to see."""

    def __init__(self, *, env: Mapping[str, str]) -> None:
        program = shutil.which("tmux", path=env.get("PATH"))
        if program is None:
            raise UsageError("tmux is not installed: install it or use --no-tmux")
        self._program = program
        self._env = {key: value for key, value in env.items() if key not in {"TMUX", "TMUX_PANE"}}

    def sessions(self) -> list[Session]:
        """All sessions; none where no server runs."""
        text = self._ask("list-sessions", "-F", "#{session_id} #{session_created} #{session_name}")
        rows = [line.split(" ", 2) for line in (text or "").splitlines()]
        return [Session(id=row[0], created=int(row[1]), name=row[2]) for row in rows if len(row) == 3]

    def find(self, name: str) -> Session | None:
        """The session with exactly this name, or with what tmux makes of it."""
        sessions = self.sessions()
        for wanted in (name, mangled(name)):
            for session in sessions:
                if session.name == wanted:
                    return session
        return None

    def current(self, session: Session) -> Session | None:
        """The same session as it is now, under whatever name; None if it is gone."""
        return next(
            (now for now in self.sessions() if (now.id, now.created) == (session.id, session.created)), None
        )

    def create(self, name: str, *, folder: Path) -> Session:
        """A new, empty session with a shell in `folder`; TmuxError if the name is taken."""
        text = self._ask(
            "new-session", "-d", "-P", "-F", "#{session_id} #{session_created} #{session_name}",
            "-x", "200", "-y", "50", "-s", _literal(name), "-c", _literal(str(folder)),
        )  # fmt: skip
        if not text:
            raise TmuxError(f"tmux did not create the session {name!r}")
        row = text.strip().split(" ", 2)
        return Session(id=row[0], created=int(row[1]), name=row[2])

    def type_line(self, session: Session, line: str) -> None:
        """Type one line and press Enter."""
        typed = line[:-1] + r"\;" if line.endswith(";") else line
        self._ask("send-keys", "-l", "-t", f"{session.id}:", "--", typed)
        self._ask("send-keys", "-t", f"{session.id}:", "Enter")

    def panes(self, session: Session) -> list[Pane]:
        """The panes of the session; none if it is gone."""
        text = self._ask(
            "list-panes",
            "-s",
            "-t",
            f"{session.id}:",
            "-F",
            "#{pane_pid} #{pane_dead} #{pane_current_command}",
        )
        rows = [line.split(" ", 2) for line in (text or "").splitlines()]
        return [
            Pane(pid=int(row[0]), dead=row[1] == "1", command=row[2] if len(row) > 2 else "") for row in rows
        ]

    def screen(self, session: Session, *, lines: int = 2000) -> str:
        """What the session shows, with its history; empty if it is gone."""
        return self._ask("capture-pane", "-p", "-J", "-S", f"-{lines}", "-t", f"{session.id}:") or ""

    def kill(self, session: Session) -> None:
        """End the session if it is still there."""
        if self.current(session) is not None:
            self._ask("kill-session", "-t", f"{session.id}:")

    def _ask(self, *arguments: str) -> str | None:
        """Standard output; None where tmux says that server or session is gone. Otherwise TmuxError."""
        try:
            done = subprocess.run(
                [self._program, "-u", *arguments],
                env=self._env,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise TmuxError(f"tmux {arguments[0]}: {error}") from error
        if done.returncode == 0:
            return done.stdout.decode("utf-8", "replace")
        complaint = done.stderr.decode("utf-8", "replace").strip()
        if _GONE.search(complaint):
            return None
        raise TmuxError(f"tmux {arguments[0]}: {complaint or f'exit {done.returncode}'}")


def _literal(text: str) -> str:
    """`#` would begin a format."""
    return text.replace("#", "##")


def mangled(name: str) -> str:
    """What tmux makes of a name that it does not take as it is."""
    name = re.sub(r"[.:]", "_", name).replace("\\", "\\\\")
    return re.sub(r"\$(?=[A-Za-z_{])", r"\\$", name)


def safe_name(text: str, *, longest: int = 48) -> str:
    """Letters, digits, `_` and `-` of `text`: a name that tmux keeps and finds as it is. May be empty."""
    return re.sub(r"[^A-Za-z0-9-]+", "_", text).strip("_-")[:longest].strip("_-")
