"""An experiment on another machine, reached with ssh's own arguments.

One connection is kept open and shared (ControlMaster). The wrapper runs there, detached: a lost connection
means `unknown`, never `ended`. Our files for it are sent along; the other machine needs Python 3.9 or
newer and bash, nothing of ours.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import select
import shlex
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

import posttrain
from posttrain.blueprints.attempt import AttemptPaths
from posttrain.blueprints.machine import PathFacts, Unreachable, Wake
from posttrain.blueprints.readiness import Readiness
from posttrain.blueprints.status import Probe, Status
from posttrain.core.errors import UsageError
from posttrain.infra.digests import digest_bytes

_LOST = 255
"""ssh's own exit code for a connection that failed."""
_ABSENT = 44
_TIMEOUT_S = 60.0
_SHARED_FOR_S = 600
_OPTIONS = (
    "-o", "BatchMode=yes", "-o", "ConnectTimeout=15", "-o", "ServerAliveInterval=15",
    "-o", "ServerAliveCountMax=3",
)  # fmt: skip
SENT = (
    "infra/supervisor.py", "blueprints/wrapper.py", "blueprints/command.py", "blueprints/output.py",
    "blueprints/activity.py", "blueprints/stamping.py", "blueprints/attempt.py",
)  # fmt: skip
_PACKAGES = ("__init__.py", "infra/__init__.py", "blueprints/__init__.py")

_FACTS = """
if [ -d "$1" ]; then k=folder; elif [ -e "$1" ]; then k=file; else k=absent; fi
d=$1; while [ ! -e "$d" ]; do d=$(dirname -- "$d"); done
x=0; w=0; [ "$k" = file ] && [ -x "$1" ] && x=1
if [ -d "$d" ]; then t=$d/.posttrain-$$; (: > "$t") 2>/dev/null && rm -f -- "$t" && w=1
elif [ "$k" = file ] && [ -w "$1" ]; then w=1; fi
echo "$k $x $w"
"""
_READ = f"""
[ -f "$1" ] || exit {_ABSENT}
tail -c "+$2" -- "$1" | if [ "$3" -lt 0 ]; then cat; else head -c "$3"; fi
"""
_WRITE = """
mkdir -p -- "$(dirname -- "$1")" && t=$1.$$.tmp && (umask 077; cat > "$t") && chmod "$2" "$t" &&
mv -f -- "$t" "$1"
"""
_PROBE = f"""
s=$(cat -- "$1" 2>/dev/null) || exit {_ABSENT}
pid=$(printf %s "$s" | sed -n 's/.*"wrapper_pid": \\([0-9]*\\).*/\\1/p')
printf '%s\\n' "$s"; cat /proc/sys/kernel/random/boot_id; cat "/proc/$pid/stat" 2>/dev/null || echo gone
"""
_WAIT = """
end=$((SECONDS + $2)); pid=$(sed -n 's/.*"wrapper_pid": \\([0-9]*\\).*/\\1/p' "$1")
while [ $SECONDS -lt $end ] && [ -d "/proc/$pid" ]; do sleep 0.5; done
"""
_IN_USE = """
p=$(head -c 32 -- "$1" | tr -d '[:space:]')
case $p in ''|*[!0-9]*) ;; *) [ -d "/proc/$p" ] && exit 0 ;; esac
for f in /proc/[0-9]*/fd/*; do [ "$(readlink -- "$f")" = "$1" ] && exit 0; done 2>/dev/null; exit 1
"""
_ANSWERS = """
import json, socket, sys, urllib.error, urllib.request
kind, url, host, port = json.loads(sys.argv[1])
try:
    if kind == "url":
        urllib.request.urlopen(url, timeout=3).close()
    else:
        socket.create_connection((host, port), timeout=3).close()
except urllib.error.HTTPError as error:
    sys.exit(error.code >= 500)
except OSError:
    sys.exit(1)
"""


class SshMachine:
    """The machine behind `ssh <arguments>`."""

    def __init__(self, arguments: str, *, env: Mapping[str, str], control: Path | None = None) -> None:
        self.label: str | None = arguments
        folder = control or Path(f"/tmp/posttrain-ssh-{os.getuid()}")  # noqa: S108 - socket paths must be short
        folder.mkdir(mode=0o700, exist_ok=True)
        self._ssh = ["ssh", *_OPTIONS, "-o", f"ControlPath={folder}/%C", *shlex.split(arguments)]
        self._shared = False
        self._env = dict(env)
        self._home: PurePosixPath | None = None
        self._sent: str | None = None

    def facts(self, path: Path) -> PathFacts:
        kind, executable, writable = self._text(_FACTS, path).split()
        return PathFacts.model_validate(
            {"kind": kind, "executable": executable == "1", "writable": writable == "1"}
        )

    def read(self, path: Path, *, offset: int = 0, limit: int = -1) -> bytes | None:
        code, data = self._run(_READ, path, offset + 1, limit)
        return data if code == 0 else None

    def tail(self, path: Path, *, limit: int) -> bytes:
        return self._run('tail -c "$2" -- "$1"', path, limit)[1]

    def write(self, path: Path, data: bytes, *, mode: int = 0o644) -> None:
        self._must(_WRITE, path, f"{mode:o}", stdin=data)

    def make_folder(self, path: Path) -> None:
        self._must('mkdir -p -- "$1"', path)

    def move(self, path: Path, target: Path) -> None:
        self._must('mkdir -p -- "$(dirname -- "$2")" && mv -n -- "$1" "$2"', path, target)

    def remove(self, path: Path) -> None:
        self._must('rm -f -- "$1"', path)

    def copy(self, source: Path, target: Path, *, limit: int) -> None:
        script = '[ -f "$1" ] || exit 0; mkdir -p -- "$(dirname -- "$2")" && tail -c "$3" -- "$1" > "$2"'
        self._must(script, source, target, limit)

    def in_use(self, path: Path) -> bool:
        return self._run(_IN_USE, path)[0] == 0

    def has_program(self, name: str) -> bool:
        return self._run('command -v -- "$1"', name)[0] == 0

    def environment(self) -> dict[str, str]:
        """Of a login there; nothing of ours crosses over."""
        pairs = self._text("env -0").split("\0")
        return dict(pair.split("=", 1) for pair in pairs if "=" in pair)

    def output(self, argv: Sequence[str], *, env: Mapping[str, str], timeout_s: float) -> str | None:
        del env  # what is asked of the other machine is asked in its own environment
        code, data = self._run('"$@"', *argv, timeout_s=timeout_s)
        return data.decode("utf-8", "replace") if code == 0 else None

    def gpu_count(self) -> int:
        return int(self._text("ls -d /dev/nvidia[0-9]* 2>/dev/null | wc -l"))

    def answers(self, ready: Readiness) -> bool:
        if ready.kind not in {"url", "port"}:
            return False
        what = json.dumps([ready.kind, ready.url, ready.host, ready.port])
        return self._run('python3 - "$1"', what, stdin=_ANSWERS.encode())[0] == 0

    def state_root(self, root: Path) -> Path:
        if self._home is None:
            self._home = PurePosixPath(self._text('printf %s "$HOME"'))
        return Path(self._home / ".posttrain" / "blueprints" / root.name)

    def wrapper_script(self, attempt: AttemptPaths) -> str:
        self._sent = self._sent or self._send()
        argv = ["python3", "-S", "-m", "posttrain.blueprints.wrapper", str(attempt.folder)]
        return f"cd / && export PYTHONPATH={shlex.quote(self._sent)}\nexec {shlex.join(argv)}\n"

    def launch(self, attempt: AttemptPaths) -> None:
        self._must('setsid nohup bash "$1" </dev/null >/dev/null 2>&1 &', attempt.run)

    def viewer(self, attempt: AttemptPaths) -> str | None:
        return shlex.join([*self._ssh, f"tail -n +1 -F {shlex.quote(str(attempt.log))}"])

    def probe(self, attempt: AttemptPaths) -> Probe:
        try:
            code, data = self._run(_PROBE, attempt.status)
        except Unreachable as error:
            return Probe(state="unknown", why=str(error))
        if code != 0:
            return Probe(state="absent")
        text, boot, stat = data.decode("utf-8", "replace").split("\n", 2)
        status = Status.model_validate_json(text)
        fields = stat.rpartition(")")[2].split()
        alive = boot == status.boot_id and len(fields) > 19 and fields[19] == status.wrapper_start
        ended = status.phase == "ended" or not alive
        return Probe(state="ended" if ended else "running", status=status)

    def wait(self, attempt: AttemptPaths, *, seconds: float, wake: Wake) -> Probe:
        probe = self.probe(attempt)
        if probe.state != "running" or seconds <= 0:
            return probe
        waiting = subprocess.Popen(
            self._argv(_WAIT, attempt.status, max(1, round(seconds))),
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        with waiting:
            handle = os.pidfd_open(waiting.pid)
            try:
                select.select([handle, wake.fileno()], [], [], seconds + _TIMEOUT_S)
            finally:
                os.close(handle)
            waiting.terminate()
        return self.probe(attempt)

    def _send(self) -> str:
        """Our few files, once a version; returns their folder there."""
        package = Path(posttrain.__file__).parent
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w") as tar:
            for name in SENT:
                tar.add(package / name, arcname=f"posttrain/{name}", filter=_plain)
            for name in _PACKAGES:
                tar.addfile(tarfile.TarInfo(f"posttrain/{name}"))
        data = archive.getvalue()
        folder = self.state_root(Path("wrapper")).parent.parent / f"wrapper-{digest_bytes(data)[:12]}"
        self._must('mkdir -p -- "$1" && tar -x -C "$1" -f -', folder, stdin=data)
        return str(folder)

    def _share_connection(self) -> None:
        """Open the connection that all calls share; without it they work too, each with its own.

        Not by ControlMaster=auto: such a master keeps the pipes of the call that made it.
        """
        self._shared = True
        master = [*self._ssh, "-o", "ControlMaster=auto", "-o", f"ControlPersist={_SHARED_FOR_S}", "-N", "-f"]
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(
                master,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=_TIMEOUT_S,
                check=False,
            )

    def _argv(self, script: str, *arguments: object) -> list[str]:
        words = ["bash", "-c", script, "posttrain", *(str(argument) for argument in arguments)]
        return [*self._ssh, shlex.join(words)]

    def _run(
        self, script: str, *arguments: object, stdin: bytes = b"", timeout_s: float = _TIMEOUT_S
    ) -> tuple[int, bytes]:
        """(exit code, standard output) of a script there. Unreachable where the connection failed."""
        if not self._shared:
            self._share_connection()
        try:
            done = subprocess.run(
                self._argv(script, *arguments),
                env=self._env,
                input=stdin,
                capture_output=True,
                timeout=timeout_s,
                check=False,
            )
        except FileNotFoundError as error:
            raise UsageError("ssh is not installed") from error
        except subprocess.TimeoutExpired as error:
            raise Unreachable(f"ssh {self.label}: no answer in {timeout_s:g} s") from error
        if done.returncode == _LOST:
            self._shared = False
            why = done.stderr.decode("utf-8", "replace").strip().splitlines()
            raise Unreachable(f"ssh {self.label}: {why[-1] if why else 'connection lost'}")
        self._complaint = done.stderr.decode("utf-8", "replace").strip()
        return done.returncode, done.stdout

    def _text(self, script: str, *arguments: object) -> str:
        return self._must(script, *arguments).decode("utf-8", "replace")

    def _must(self, script: str, *arguments: object, stdin: bytes = b"") -> bytes:
        code, data = self._run(script, *arguments, stdin=stdin)
        if code != 0:
            raise OSError(f"ssh {self.label}: {self._complaint or f'exit {code}'}")
        return data


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """The same bytes whoever sends them: the digest names the folder."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mtime = 0
    entry.mode = 0o644
    return entry
