"""Builds the folder that is all the agent sees, and says which host paths lie in it read-only."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from posttrain.benchmarks.registry import description
from posttrain.core.engine import PinnedPrompt, RenderedPrompt
from posttrain.core.errors import PluginError
from posttrain.core.paths import RunPaths
from posttrain.core.specs import TaskSpec
from posttrain.infra.files import write_json, write_jsonl


@dataclass(frozen=True)
class Mount:
    """A host path that shows up in the workspace, read-only."""

    source: Path
    target: Path
    """Inside the workspace."""


@dataclass(frozen=True)
class Contents:
    """What goes into a workspace."""

    task: TaskSpec
    model_folder: Path
    model_name: str
    """`org/name`: where the model shows up below models/."""
    visible: Path
    """Folder with train.jsonl."""
    pinned: PinnedPrompt
    samples: Sequence[RenderedPrompt]
    instructions: str
    rules: str
    skills: Path | None


def mounts(contents: Contents, paths: RunPaths) -> list[Mount]:
    """Model, data and logs: shown by bind mounts under isolation, by links without it."""
    workspace = paths.workspace
    shown = [
        Mount(contents.model_folder, workspace.models / contents.model_name),
        Mount(contents.visible, workspace.data),
        Mount(paths.agent_log, workspace.agent_log),
        Mount(paths.public_log, workspace.run_log),
    ]
    if contents.skills is not None:
        shown.append(Mount(contents.skills, workspace.skills))
    return shown


def build(contents: Contents, paths: RunPaths, *, linked: bool) -> None:
    """Create the workspace; an existing one (a resume) keeps what the agent has made.

    `linked` puts symbolic links where an isolated view has bind mounts; otherwise empty mount points.
    """
    workspace = paths.workspace
    for folder in (workspace.code, workspace.output, workspace.reports, workspace.prompt):
        folder.mkdir(parents=True, exist_ok=True)
    for log in (paths.agent_log, paths.public_log):
        log.touch()
    for mount in mounts(contents, paths):
        _place(mount, linked=linked)
    _write_texts(contents, paths)
    _expose(contents.task, workspace.root)


def restore(contents: Contents, paths: RunPaths, *, linked: bool) -> None:
    """Make model, data and logs show up in a kept workspace again, whatever the agent put in their place.

    The lab home may have moved since. A folder or file in the way is kept beside it, under another name.
    """
    for mount in mounts(contents, paths):
        for place in (*_parents(mount.target, below=paths.workspace.root), mount.target):
            if not _fits(place, mount, linked=linked):
                _clear(place)
        _place(mount, linked=linked)


def _clear(place: Path) -> None:
    if place.is_symlink():
        place.unlink()
    else:
        place.rename(place.with_name(f"{place.name}.{secrets.token_hex(4)}"))


def _parents(path: Path, *, below: Path) -> list[Path]:
    """The folders on the way from `below` to `path`, the upper ones first."""
    return [folder for folder in reversed(path.parents) if below in folder.parents]


def _fits(place: Path, mount: Mount, *, linked: bool) -> bool:
    """Whether nothing is at `place`, or what must be there."""
    if not os.path.lexists(place):
        return True
    if place != mount.target:
        return place.is_dir() and not place.is_symlink()
    if linked:
        return place.is_symlink() and place.readlink() == mount.source
    same_kind = place.is_dir() if mount.source.is_dir() else place.is_file()
    return same_kind and not place.is_symlink()


def _place(mount: Mount, *, linked: bool) -> None:
    mount.target.parent.mkdir(parents=True, exist_ok=True)
    if mount.target.is_symlink() or mount.target.exists():
        return
    if linked:
        mount.target.symlink_to(mount.source)
    elif mount.source.is_dir():
        mount.target.mkdir()
    else:
        mount.target.touch()


def _write_texts(contents: Contents, paths: RunPaths) -> None:
    workspace = paths.workspace
    workspace.instructions.write_text(contents.instructions, "utf-8")
    workspace.rules.write_text(contents.rules, "utf-8")
    write_json(workspace.prompt_settings, contents.pinned)
    workspace.prompt_template.write_text(contents.pinned.prompt.template, "utf-8")
    write_jsonl(workspace.prompt_samples, contents.samples)
    workspace.description.write_text(description(contents.task), "utf-8")


def _expose(task: TaskSpec, workspace: Path) -> None:
    """Copy what the task says the agent may see; a missing entry is the task's fault, not skipped."""
    for name in task.expose:
        source = task.folder / name
        if not source.resolve().is_relative_to(task.folder.resolve()):
            raise PluginError(f"task {task.id}: expose: {name!r} lies outside the task's folder")
        if source.is_dir():
            shutil.copytree(source, workspace / name, dirs_exist_ok=True)
        elif source.is_file():
            (workspace / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, workspace / name)
        else:
            raise PluginError(f"task {task.id}: expose: {name!r} is not in the task's folder")
