"""Who is at the other end of a connection: by the kernel's word, not the client's."""

from __future__ import annotations

import socket
import struct
from pathlib import Path

_UCRED = struct.Struct("3i")


def peer_uid(connection: socket.socket) -> int | None:
    """The uid that opened the other end; None if the kernel doesn't say."""
    if connection.family == socket.AF_UNIX:
        raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
        return int(_UCRED.unpack(raw)[1])
    try:
        theirs, ours = connection.getpeername(), connection.getsockname()
    except OSError:
        return None
    return _uid_in_table(theirs, ours) if connection.family == socket.AF_INET else None


def _uid_in_table(theirs: tuple[str, int], ours: tuple[str, int]) -> int | None:
    """The owner of the socket whose local end is `theirs`, from the kernel's table of connections."""
    local, remote = _as_in_table(*theirs), _as_in_table(*ours)
    try:
        table = Path("/proc/net/tcp").read_text("ascii")
    except OSError:
        return None
    for line in table.splitlines()[1:]:
        columns = line.split()
        if len(columns) > 7 and columns[1] == local and columns[2] == remote:
            return int(columns[7])
    return None


def _as_in_table(host: str, port: int) -> str:
    """`0100007F:1388`: the address as a number of this machine's byte order."""
    (address,) = struct.unpack("=I", socket.inet_aton(host))
    return f"{address:08X}:{port:04X}"
