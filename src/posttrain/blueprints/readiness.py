"""When a service counts as ready: a URL that answers, a port that accepts, or a pattern in its log."""

from __future__ import annotations

import re
import socket
from typing import Literal

from posttrain.core.frozen import Frozen

_TIMEOUT_S = 3.0
_SERVER_FAULT = 500


class Readiness(Frozen):
    """One condition, resolved from the text of a blueprint."""

    kind: Literal["url", "port", "log", "started"]
    """started: nothing better is known than that it runs for a while."""
    url: str = ""
    host: str = "127.0.0.1"
    port: int = 0
    pattern: str = ""

    def answers(self) -> bool:
        """Whether something answers now; False for conditions on the log."""
        if self.kind == "url":
            return _url_answers(self.url)
        if self.kind == "port":
            return _port_answers(self.host, self.port)
        return False


def readiness(text: str | None, command: str) -> Readiness:
    """`exp_service_ready`, or the port that the service's own command names."""
    text = (text or "").strip()
    if re.match(r"https?://", text):
        return Readiness(kind="url", url=text)
    address = re.fullmatch(r"(?:port\s*|端口\s*)?(?:([\w.-]+):)?(\d{2,5})", text, re.IGNORECASE)
    if address:
        return Readiness(kind="port", host=address[1] or "127.0.0.1", port=int(address[2]))
    if text:
        return Readiness(kind="log", pattern=text.removeprefix("log:").strip().strip("/"))
    option = re.search(r"--(?:swarm[-_])?port[ =](\d{2,5})", command)
    return Readiness(kind="port", port=int(option[1])) if option else Readiness(kind="started")


def _url_answers(url: str) -> bool:
    import urllib.error  # with its TLS library these cost more memory than all else here
    import urllib.request

    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as reply:  # noqa: S310 - matched http(s) above
            return bool(reply.status < _SERVER_FAULT)
    except urllib.error.HTTPError as error:
        return error.code < _SERVER_FAULT  # it answers, if only that this page is not there
    except (OSError, ValueError):
        return False


def _port_answers(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=_TIMEOUT_S):
            return True
    except OSError:
        return False
