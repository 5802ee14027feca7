"""Tasks are folders: this finds them, reads their manifests and says in one line what is wrong with one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from posttrain.benchmarks import opencompass, smith
from posttrain.core.errors import PluginError, UsageError
from posttrain.core.faults import first_fault
from posttrain.core.specs import TaskSpec
from posttrain.evaluators.opencompass.settings import config_name, is_opencompass, read_settings

MANIFEST = "benchmark.yaml"
BUILT_IN = Path(__file__).parent
"""The folder with the tasks that ship."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-]*", re.ASCII)
_SHORTHAND = ("own", "per_sample")
"""Evaluators that are code of the task folder."""


class TaskRegistry:
    """The tasks of several root folders; of two tasks with one name the one in the earlier root counts."""

    def __init__(self, roots: Sequence[Path] = (BUILT_IN,), *, smith_root: Path | None = None) -> None:
        self._folders: dict[str, Path] = {}
        for root in roots:
            for folder in _folders_with(root, MANIFEST):
                self._folders.setdefault(folder.name, folder)
        if smith_root is not None:
            for folder in smith.folders(smith_root):
                self._folders.setdefault(smith.task_name(folder), folder)

    def names(self) -> tuple[str, ...]:
        """All tasks, broken ones too, without variants."""
        return tuple(sorted(self._folders))

    def variants(self, name: str) -> tuple[str, ...]:
        """The variants of a task in the order of its manifest."""
        with _usable(name):
            return tuple(_variants(self._manifest(name)))

    def broken(self) -> dict[str, str]:
        """What is wrong with each task that cannot be used."""
        reasons: dict[str, str] = {}
        for name in self.names():
            try:
                for variant in ("", *_variants(self._manifest(name))):
                    self._load(f"{name}:{variant}" if variant else name)
            except (PluginError, UsageError) as error:
                reasons[name] = str(error)
        return reasons

    def folder(self, name: str) -> Path:
        """The folder of a task; UsageError naming the known ones if there is none."""
        base = name.partition(":")[0]
        if base not in self._folders:
            raise UsageError(f"--task: no task {base!r}. Known: {', '.join(self.names()) or 'none'}")
        return self._folders[base]

    def load(self, task_id: str) -> TaskSpec:
        """The resolved task `name` or `name:variant`; UsageError in one line for what cannot be used."""
        with _usable(task_id):
            return self._load(task_id)

    def _load(self, task_id: str) -> TaskSpec:
        name, _, variant = task_id.partition(":")
        if name == opencompass.NAME and name not in self._folders:
            return self._of_opencompass(variant)
        manifest = self._manifest(name)
        variants = _variants(manifest)
        if ":" in task_id and variant not in variants:
            known = ", ".join(variants) or "none"
            raise UsageError(f"--task: {name} has no variant {variant!r}. Its variants: {known}")
        merged = {key: value for key, value in manifest.items() if key != "variants"}
        if variant:
            merged = merge(merged, variants[variant])
        spec = self._spec(name, variant or None, merged)
        if spec.format_control is not None and spec.format_control not in variants:
            raise PluginError(f"{_shown(spec.folder)}: format_control: no variant {spec.format_control!r}")
        return spec

    def _of_opencompass(self, configuration: str) -> TaskSpec:
        if not configuration:
            raise UsageError(
                "--task: opencompass is followed by a configuration: opencompass:gsm8k_gen_1d7fe4"
            )
        family = opencompass.require_family(configuration)
        return opencompass.spec_of(configuration, family, self._load(family.like))

    def format_control(self, task: TaskSpec) -> TaskSpec | None:
        """The variant that shows what a prompt alone gives; None if the task names none, or is it."""
        if task.format_control in (None, task.variant):
            return None
        return self.load(f"{task.name}:{task.format_control}")

    def _manifest(self, name: str) -> dict[str, Any]:
        folder = self.folder(name)
        if not (folder / MANIFEST).is_file():
            return smith.manifest(folder)
        return read_manifest(folder / MANIFEST)

    def _spec(self, name: str, variant: str | None, fields: Mapping[str, Any]) -> TaskSpec:
        folder = self.folder(name)
        where = _shown(folder)
        for reserved in ("id", "folder", "variant"):
            if reserved in fields:
                raise PluginError(f"{where}: {reserved} is not a field of a task")
        identity = {"id": f"{name}:{variant}" if variant else name, "folder": folder, "variant": variant}
        try:
            spec = TaskSpec.model_validate({"title": name, **fields, **identity})
        except ValidationError as error:
            raise PluginError(f"{where}: {first_fault(error, whole='manifest')}") from error
        _check_files(spec, where)
        return spec


@contextmanager
def _usable(name: str) -> Iterator[None]:
    """A broken folder is for the operator to mend: a UsageError that names file and field."""
    try:
        yield
    except PluginError as error:
        raise UsageError(f"--task {name} is broken: {error}") from error


def read_manifest(path: Path) -> dict[str, Any]:
    """A YAML mapping; PluginError naming file and line for anything else."""
    shown = _shown(path.parent, path.name)
    try:
        data = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise PluginError(f"{shown}: cannot be read: {error}") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        raise PluginError(f"{shown}{line}: not YAML: {getattr(error, 'problem', error)}") from error
    if not isinstance(data, dict):
        raise PluginError(f"{shown}: a mapping of fields is expected, not {type(data).__name__}")
    return data


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` laid on `base`, mappings merged at every depth, everything else replaced."""
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        both = isinstance(old, Mapping) and isinstance(value, Mapping)
        merged[key] = merge(old, value) if both else value  # type: ignore[arg-type]
    return merged


def _folders_with(root: Path, manifest: str) -> list[Path]:
    if not root.is_dir():
        return []
    return [
        folder
        for folder in sorted(root.iterdir())
        if _NAME.fullmatch(folder.name) and (folder / manifest).is_file()
    ]


def _variants(manifest: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    variants = manifest.get("variants") or {}
    if not isinstance(variants, dict):
        raise PluginError("benchmark.yaml: variants: a mapping of names to fields is expected")
    for name, fields in variants.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise PluginError(f"benchmark.yaml: variants: {name!r} is not a name")
        if fields is not None and not isinstance(fields, dict):
            raise PluginError(f"benchmark.yaml: variants.{name}: a mapping of fields is expected")
    return {name: fields or {} for name, fields in variants.items()}


def _check_files(spec: TaskSpec, where: str) -> None:
    """Every file that a manifest names lies in the task's own folder and exists."""
    named = {
        "expose": spec.expose,
        "prompt.few_shot": (spec.prompt.few_shot,) if spec.prompt.few_shot else (),
    }
    root = spec.folder.resolve()
    for field, names in named.items():
        for name in names:
            path = (spec.folder / name).resolve()
            if not path.is_relative_to(root):
                raise PluginError(f"{where}: {field}: {name!r} lies outside the task's folder")
            if not path.exists():
                raise PluginError(f"{where}: {field}: no file {name!r}")
    if is_opencompass(spec.evaluator):
        config_name(spec.evaluator)
        read_settings(spec.evaluator_settings, where=where)
        if spec.generation.samples != 1:
            raise PluginError(f"{where}: generation.samples: OpenCompass counts one answer an item")
    if spec.evaluator in _SHORTHAND and not (spec.folder / "eval.py").is_file():
        raise PluginError(f"{where}: evaluator: {spec.evaluator} needs a file eval.py")


def _shown(folder: Path, file: str = MANIFEST) -> str:
    return f"{folder.name}/{file}"


def description(spec: TaskSpec) -> str:
    """What the agent reads of a task: description.md, else what the manifest says."""
    path = spec.folder / "description.md"
    if path.is_file():
        return path.read_text("utf-8")
    if smith.is_smith(spec.folder):
        return smith.description(spec.folder)
    return f"# {spec.title}\n"
