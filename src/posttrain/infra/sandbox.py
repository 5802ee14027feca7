"""What a child process may see: its view of files, identity and network.

A view is an allow-list. Nothing is in it but what one of the functions below puts there;
docs/design/processes.md lists the whole and says why each part is needed.
"""

from __future__ import annotations

import os
import pwd
import site
import stat
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from posttrain.core.errors import UsageError

Isolation = Literal["bwrap", "none"]
Network = Literal["grader", "host", "none"]

GRADER_SOCKET = Path("/run/posttrain/grader.sock")
"""Where a view shows the grading server's socket."""
PACKAGE = Path(__file__).resolve().parents[1]
"""The posttrain package. Its `benchmarks` folder holds generators of hidden items and is always covered."""

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt")
_ESSENTIAL = {
    *_SYSTEM[:-1],
    *(f"/usr/{name}" for name in ("bin", "sbin", "lib", "lib32", "lib64", "libexec", "share", "local")),
    *(f"/usr/local/{name}" for name in ("bin", "sbin", "lib", "share")),
}
_FRESH = {"/tmp": "1777", "/var/tmp": "1777", "/dev/shm": "1777", "/run": "0755"}  # noqa: S108 - names in the view
_GPU_SYSTEM = ("/sys/bus/pci", "/sys/class/pci_bus", "/sys/module/nvidia", "/sys/module/nvidia_uvm")
_UIDS = range(0x7000_0000, 0x7FFF_FFFE)
"""No distribution, container tool or service manager hands out user ids from here."""
_UIDS_OF_SMALL_MAPS = range(50_000, 60_000)
"""For a container that has only 65536 ids."""


@dataclass(frozen=True)
class Bind:
    """A file or folder of the host that a view shows read-only at another path."""

    source: Path
    target: Path


@dataclass(frozen=True)
class Relay:
    """`127.0.0.1:<port>` inside a view leads to a unix socket of the host and nowhere else."""

    port: int
    socket: Path


@dataclass(frozen=True)
class View:
    """The surroundings of one child: arguments for bubblewrap, and what happens inside before the command."""

    isolation: Isolation
    bwrap_options: tuple[str, ...]
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Small read-only files that exist in the view alone, by path."""
    drop: tuple[str, ...] = ()
    """The program that gives up root, put before what runs inside."""
    relay: Relay | None = None
    """With `socket` as the view names it."""

    @property
    def sealed(self) -> bool:
        """Whether keys and abstract sockets of the host are to be put out of reach as well."""
        return self.isolation != "none"

    @classmethod
    def host(cls, *, network: Literal["host", "none"] = "host") -> View:
        """Everything that the harness sees; only the processes of the host are out of sight."""
        cut = ("--unshare-net",) if network == "none" else ()
        return cls(isolation="none", bwrap_options=("--dev-bind", "/", "/", "--proc", "/proc", *cut))

    @classmethod
    def allow_list(
        cls,
        *,
        home: Path,
        uid: int | None,
        network: Network,
        relay: Relay | None = None,
        writable: Sequence[Path] = (),
        readable: Sequence[Path] = (),
        binds: Sequence[Bind] = (),
        hidden: Sequence[Path] = (),
    ) -> View:
        """The system, the Python in use and posttrain, read-only, and beyond them only what is listed.

        `home` is empty and writable. `uid` is what the child runs as: required for root (see
        `choose_uid`), not allowed for others. `relay` belongs to network `grader`. `writable` and
        `readable` are shown at their own paths, `binds` at others, inside of writable folders too,
        where the mount point must exist. `hidden` covers what lies inside of something shown (lab home,
        launch folder, task folders); what is listed explicitly below a hidden folder stays visible.
        """
        _check(uid=uid, network=network, relay=relay)
        layout = _Layout()
        _show_system(layout)
        layout.fresh(home, mode="1777")
        layout.hide(hidden)
        for path in (*_python_paths(), PACKAGE, *readable):
            layout.read_only(path)
        for path in writable:
            layout.writable(path)
        for bind in binds:
            layout.read_only(bind.target, source=bind.source)
        layout.cover(PACKAGE / "benchmarks")
        if network == "host":
            layout.read_only(Path("/etc/resolv.conf").resolve())
        if relay is not None:
            layout.read_only(GRADER_SOCKET, source=relay.socket)
        options = tuple(layout.options())
        return cls(
            isolation="bwrap",
            bwrap_options=(*options, *_namespaces(uid, network)),
            files={**layout.files, **_accounts(os.getuid() if uid is None else uid, home)},
            drop=() if uid is None else _drop_to(uid),
            relay=None if relay is None else Relay(port=relay.port, socket=GRADER_SOCKET),
        )


def _check(*, uid: int | None, network: Network, relay: Relay | None) -> None:
    root = os.getuid() == 0
    if root and not uid:
        raise UsageError("uid: root has to name the user id that the child runs as")
    if not root and uid is not None:
        raise UsageError("uid: only root can run a child as another user")
    if (network == "grader") != (relay is not None):
        raise UsageError(f"relay: network {network!r} {'needs one' if network == 'grader' else 'has none'}")


def _namespaces(uid: int | None, network: Network) -> tuple[str, ...]:
    options = ["--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try", "--hostname", "posttrain"]
    if network != "host":
        options.append("--unshare-net")
    if uid is None:
        return (*options, "--unshare-user")
    keep = ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP")  # what the drop itself takes
    return (*options, "--cap-drop", "ALL", *(word for name in keep for word in ("--cap-add", name)))


def _drop_to(uid: int) -> tuple[str, ...]:
    return (
        *("setpriv", "--reuid", str(uid), "--regid", str(uid), "--clear-groups"),
        *("--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"),
    )


def _accounts(uid: int, home: Path) -> dict[str, bytes]:
    """Account files with root, nobody and the child: programs ask for the name and home of their uid."""
    users = ("root:x:0:0::/:/bin/false", "nobody:x:65534:65534::/:/bin/false")
    child = f"agent:x:{uid}:{uid}::{home}:/bin/bash"
    groups = (f"agent:x:{uid}:", "root:x:0:", "nogroup:x:65534:")
    lines = {"/etc/passwd": (child, *users), "/etc/group": groups}  # the first row of a uid gives the name
    return {name: "".join(f"{row}\n" for row in rows).encode() for name, rows in lines.items()}


def choose_uid(name: str, *, besides: Sequence[int] = ()) -> int:
    """A user id for `name` that no account and no running process has; the same again if free.

    It is none of `besides`. UsageError where there is none.
    """
    candidates = next((ids for ids in (_UIDS, _UIDS_OF_SMALL_MAPS) if _is_mapped(ids[-1])), range(0))
    taken = {entry.pw_uid for entry in pwd.getpwall()} | set(_uids_in_use()) | set(besides)
    start = zlib.crc32(name.encode())
    for step in range(len(candidates)):
        uid = candidates[(start + step) % len(candidates)]
        if uid not in taken:
            return uid
    raise UsageError("uid: this machine has no user id to spare (a container with too few of them?)")


def _is_mapped(uid: int) -> bool:
    rows = [
        [int(word) for word in line.split()] for line in Path("/proc/self/uid_map").read_text().splitlines()
    ]
    return any(inside <= uid < inside + length for inside, _, length in rows)


def _uids_in_use() -> Iterator[int]:
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                yield folder.stat().st_uid
            except OSError:
                continue


def hand_over(folder: Path, uid: int) -> None:
    """Make `uid` the owner of a folder and all below it; links themselves, never what they point to."""
    for _, folders, files, descriptor in os.fwalk(folder, follow_symlinks=False):
        for name in (*folders, *files):
            os.chown(name, uid, uid, dir_fd=descriptor, follow_symlinks=False)
    os.chown(folder, uid, uid, follow_symlinks=False)


def require_readable(folder: Path, uid: int | None) -> None:
    """UsageError if `uid`, who owns nothing there, could not read all of `folder` once a view shows it."""
    if uid is None:
        return
    for path in (folder, *folder.rglob("*")):
        mode = path.lstat().st_mode
        needed = 0o005 if stat.S_ISDIR(mode) else 0o004
        if not stat.S_ISLNK(mode) and mode & needed != needed:
            raise UsageError(
                f"{path}: closed to other users, one of whom has to read it: chmod -R o+rX {folder}"
            )


def gpu_nodes() -> list[Path]:
    """The device files of NVIDIA's driver, one by one."""
    found = (*Path("/dev").glob("nvidia*"), *Path("/dev/nvidia-caps").glob("*"), Path("/dev/dxg"))
    return sorted(path for path in found if path.is_char_device())


def _show_system(layout: _Layout) -> None:
    layout.own("/proc", "--proc")
    layout.own("/dev", "--dev")
    for name in _SYSTEM:
        layout.system(Path(name))
    for name, mode in _FRESH.items():
        layout.fresh(Path(name), mode=mode)
    layout.read_only(Path("/sys/devices/system"))  # how many processors and memory nodes there are
    nodes = gpu_nodes()
    for node in nodes:
        layout.device(node)
    if nodes:  # several GPUs find each other by their places on the bus
        for path in (*map(Path, _GPU_SYSTEM), *Path("/sys/devices").glob("pci*")):
            layout.read_only(path)


def _python_paths() -> list[Path]:
    """Everything that the Python in use consists of, by the names it uses and by the real ones."""
    prefixes = {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix}
    if site.ENABLE_USER_SITE:
        prefixes.add(site.getusersitepackages())
    named = [Path(prefix) for prefix in prefixes]
    shown = {*named, *(path.resolve() for path in named)}
    apart = [link for link in _links(Path(sys.executable)) if shown.isdisjoint(link.parents)]
    return [path for path in (*named, *apart) if path.exists()]


def _links(program: Path) -> Iterator[Path]:
    """`program` and what it points to, link by link."""
    yield program
    while program.is_symlink():
        program = Path(os.path.normpath(program.parent / program.readlink()))
        yield program


@dataclass(frozen=True)
class _Mount:
    words: tuple[str, ...]
    """Options of bubblewrap, without the target."""
    kind: Literal["bind", "fresh", "link"]
    alias: bool = False
    """Stands at a name that leads over links to what is shown."""


class _Layout:
    """Mounts by target; those nearer to the root come first, and a later word about a target wins."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self._mounts: dict[Path, _Mount] = {}
        self._hidden: list[Path] = []

    def own(self, target: str, option: str) -> None:
        self._mounts[Path(target)] = _Mount((option,), "fresh")

    def fresh(self, target: Path, *, mode: str) -> None:
        self._mounts[target] = _Mount(("--perms", mode, "--tmpfs"), "fresh")

    def device(self, path: Path) -> None:
        self._mounts[path] = _Mount(("--dev-bind", str(path)), "bind")

    def system(self, path: Path) -> None:
        if path.is_symlink():
            self._mounts[path] = _Mount(("--symlink", str(path.readlink())), "link")
        elif path.exists():
            self._mounts[path] = _Mount(("--ro-bind", str(path)), "bind")

    def read_only(self, target: Path, *, source: Path | None = None) -> None:
        """Nothing where `source` (default: the target itself) does not exist."""
        real = (source or target).resolve()
        if not real.exists():
            return
        names = {target} if source else {target, real}
        for name in names:
            alias = not source and name != real
            self._mounts[self._through_links(name)] = _Mount(("--ro-bind", str(real)), "bind", alias)

    def writable(self, path: Path) -> None:
        self._mounts[self._through_links(path)] = _Mount(("--bind", str(path)), "bind")

    def cover(self, path: Path) -> None:
        """Put nothing over `path`."""
        if path.is_dir():
            self._mounts[path] = _Mount(("--perms", "0555", "--tmpfs"), "fresh")
        else:
            self.files[str(path)] = b""

    def hide(self, paths: Sequence[Path]) -> None:
        self._hidden += [name for path in paths for name in {path, path.resolve()} if path.exists()]

    def options(self) -> Iterator[str]:
        """Arguments for bubblewrap, with every folder on the way made so that all can pass."""
        self._settle()
        for path in map(self._place, self._hidden):
            if path not in self._mounts and str(path) not in _ESSENTIAL and self._above(path) == "bind":
                self.cover(path)
        made: set[Path] = set()
        for target in sorted(self._mounts, key=lambda path: (len(path.parts), path)):
            for parent in reversed(target.parents[:-1]):
                if parent not in made and parent not in self._mounts and self._above(parent) != "bind":
                    made.add(parent)
                    yield from ("--perms", "0755", "--dir", str(parent))
            yield from (*self._mounts[target].words, str(target))
        yield from ("--remount-ro", "/")

    def _settle(self) -> None:
        """Move what would be mounted on a link: bubblewrap follows it to where nothing is yet, and fails."""
        for name in sorted(name for name, mount in self._mounts.items() if mount.alias):
            mount = self._mounts.pop(name)
            self._mounts.setdefault(self._place(name), mount)

    def _place(self, name: Path) -> Path:
        """Where the links lead over which `name` is reached, as far as they are shown themselves."""
        while (link := self._shown_link(name)) is not None:
            at, target = link
            name = self._through_links(Path(os.path.normpath(at.parent / target / name.relative_to(at))))
        return name

    def _shown_link(self, name: Path) -> tuple[Path, Path] | None:
        """The first link on the way to `name` inside of the mount that it lies in, and where it points."""
        below = self._parent(name)
        if below is None or self._mounts[below].kind != "bind":
            return None
        source = Path(self._mounts[below].words[-1])
        for at in (*reversed(name.parents), name):
            if below not in at.parents:
                continue
            link = source / at.relative_to(below)
            if link.is_symlink():
                return at, link.readlink()
            if at in self._hidden:
                return None  # nothing of the mount is seen from here on
        return None

    def _parent(self, path: Path) -> Path | None:
        """The mount that `path` lies in."""
        return next((parent for parent in path.parents if parent in self._mounts), None)

    def _above(self, path: Path) -> str | None:
        """The kind of the mount that `path` lies in."""
        parent = self._parent(path)
        return None if parent is None else self._mounts[parent].kind

    def _through_links(self, path: Path) -> Path:
        """`path` with /bin, /lib and the like replaced by what they are links to."""
        top = Path(*path.parts[:2])
        if top in self._mounts and self._mounts[top].kind == "link":
            return top.resolve().joinpath(*path.parts[2:])
        return path
