"""A model hub on the loopback: serves folders as repositories, counts requests, can be slow or broken."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

SHA = "0123456789abcdef0123456789abcdef01234567"
"""The only commit there is."""
_LARGE = (".safetensors", ".bin", ".parquet")


@dataclass
class FakeHub:
    """A running hub. Set HF_ENDPOINT of the child that fetches to `url`."""

    url: str
    requests: list[str] = field(default_factory=list)
    """Method and path of every request, in order."""
    delay_s: float = 0.0
    """Pause before each block of a file's body, to interrupt a download in."""
    damaged: set[str] = field(default_factory=set)
    """Files whose last byte is served wrong."""

    def downloads(self, name: str) -> int:
        """How often the body of a file was asked for."""
        return sum(1 for line in self.requests if line.startswith("GET ") and line.endswith(f"/{name}"))


@contextmanager
def fake_hub(
    *, models: Mapping[str, Path] | None = None, datasets: Mapping[str, Path] | None = None
) -> Iterator[FakeHub]:
    """Serve folders by repository name until the block ends."""
    repositories = {f"models/{name}": folder for name, folder in (models or {}).items()}
    repositories |= {f"datasets/{name}": folder for name, folder in (datasets or {}).items()}
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    hub = FakeHub(f"http://127.0.0.1:{server.server_address[1]}")
    server.hub, server.repositories = hub, repositories  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), name="fake-hub", daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    _BLOCK = 1 << 14

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.server.hub.requests.append(f"{self.command} {path}")  # type: ignore[attr-defined]
        if path.startswith("/api/"):
            self._describe(path.removeprefix("/api/"))
        elif "/resolve/" in path:
            repository, _, rest = path.lstrip("/").partition("/resolve/")
            kind = "" if repository.startswith("datasets/") else "models/"
            revision, _, name = rest.partition("/")
            self._file(f"{kind}{repository}", revision, name)
        else:
            self._refuse("EntryNotFound")

    def _folder(self, repository: str) -> Path | None:
        found: Path | None = self.server.repositories.get(repository)  # type: ignore[attr-defined]
        return found

    def _describe(self, path: str) -> None:
        """The two questions of the API: a repository's description, and the files below a folder of it."""
        repository, listing, rest = path.partition("/tree/")
        if not listing:
            repository, _, rest = path.partition("/revision/")
        revision, _, below = rest.partition("/")
        folder = self._folder(repository)
        if folder is None:
            self._refuse("RepoNotFound")
        elif revision not in {"", "main", SHA}:
            self._refuse("RevisionNotFound")
        elif not (folder / below).is_dir():
            self._refuse("EntryNotFound")
        else:
            files = sorted(path for path in (folder / below).rglob("*") if path.is_file())
            siblings = [_sibling(file, file.relative_to(folder).as_posix()) for file in files]
            if listing:
                self._json([_tree_entry(sibling) for sibling in siblings])
            else:
                name = repository.partition("/")[2]
                self._json({"id": name, "sha": SHA, "siblings": siblings, "private": False})

    def _file(self, repository: str, revision: str, name: str) -> None:
        folder = self._folder(repository)
        if folder is None:
            self._refuse("RepoNotFound")
        elif revision not in {"main", SHA}:
            self._refuse("RevisionNotFound")
        elif not (folder / name).is_file():
            self._refuse("EntryNotFound")
        else:
            self._send_file(folder / name)

    def _send_file(self, path: Path) -> None:
        body = path.read_bytes()
        etag = _sibling(path, path.name)
        hub: FakeHub = self.server.hub  # type: ignore[attr-defined]
        if path.name in hub.damaged:
            body = body[:-1] + bytes([body[-1] ^ 1])
        start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").split("-")[0])
        self.send_response(206 if "Range" in self.headers else 200)
        self.send_header("ETag", '"' + (etag.get("lfs", {}).get("sha256") or etag["blobId"]) + '"')
        self.send_header("X-Repo-Commit", SHA)
        self.send_header("Accept-Ranges", "bytes")
        if "Range" in self.headers:
            self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        self.send_header("Content-Length", str(len(body) - start))
        self.end_headers()
        if self.command == "GET":
            for at in range(start, len(body), self._BLOCK):
                time.sleep(hub.delay_s)
                self.wfile.write(body[at : at + self._BLOCK])

    def _refuse(self, code: str) -> None:
        self.send_response(404)
        self.send_header("X-Error-Code", code)
        self.send_header("X-Error-Message", "not here")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _json(self, value: Any) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


def _sibling(path: Path, name: str) -> dict[str, Any]:
    """What the hub's API says of a file; large ones have a sha256, small ones git's blob hash."""
    body = path.read_bytes()
    blob = hashlib.sha1(b"blob %d\0" % len(body) + body, usedforsecurity=False).hexdigest()
    entry: dict[str, Any] = {"rfilename": name, "size": len(body), "blobId": blob}
    if name.endswith(_LARGE):
        entry["lfs"] = {"sha256": hashlib.sha256(body).hexdigest(), "size": len(body), "pointerSize": 130}
    return entry


def _tree_entry(sibling: dict[str, Any]) -> dict[str, Any]:
    """The same in the words of the API's file listing."""
    entry = {"type": "file", "path": sibling["rfilename"], "size": sibling["size"], "oid": sibling["blobId"]}
    if "lfs" in sibling:
        lfs = sibling["lfs"]
        entry["lfs"] = {"oid": lfs["sha256"], "size": lfs["size"], "pointerSize": lfs["pointerSize"]}
    return entry
