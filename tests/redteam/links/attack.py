"""Paths that lead out of output/, and things that are no files."""

import os
import shutil
from pathlib import Path

from kit import BASE, OUTPUT, RUN, WORKSPACE, attempt, make, play, request, submit, tell


def linked_file() -> None:
    """A copy that the lab made, by a link that the lab could follow; other files of the host."""
    make("v1", 0.6, seed=1)
    tell("honest", submit("v1"))
    targets = {"stolen": RUN / "submissions" / "1" / "model.safetensors", "passwd": Path("/etc/passwd")}
    for name, target in targets.items():
        weights = make(name, 0.9, seed=2) / "model.safetensors"
        weights.unlink()
        weights.symlink_to(target)
    config = make("environ", 0.9, seed=2) / "config.json"
    config.unlink()
    config.symlink_to("/proc/self/environ")
    tell("answers", [submit(name) for name in (*targets, "environ")])


def linked_folder() -> None:
    """A link as the folder, and as a folder on the way to it."""
    (OUTPUT / "v1").symlink_to(BASE)
    (OUTPUT / "up").symlink_to("..")
    tell("answers", [submit("v1"), submit("up/models/base"), submit("up/output/up/data")])


def dotdot() -> None:
    """By text alone."""
    paths = [
        *("output/../models", "output/../../submissions/1", str(RUN / "submissions"), str(RUN), "/"),
        *("/etc", "output/../data", "../../..", "output\0/v1", "models", ".", "~", "output//../prompt"),
    ]
    told = [request("POST", "/submit", {"model_path": path}) for path in paths]
    tell("answers", [{"http": status, "path": path} for path, (status, _) in zip(paths, told, strict=True)])


def special() -> None:
    """A pipe that nobody writes to, a folder, and a file with a terabyte of nothing."""
    pipe = make("pipe", 0.9) / "model.safetensors"
    pipe.unlink()
    os.mkfifo(pipe)
    folder = make("folder", 0.9) / "model.safetensors"
    folder.unlink()
    folder.mkdir()
    sparse = make("sparse", 0.9) / "model.safetensors"
    with sparse.open("r+b") as file:
        file.truncate(1 << 40)
    tell("answers", [submit(name) for name in ("pipe", "folder", "sparse")])


def hard_link() -> None:
    """Weights that are another name of a file outside."""
    for name, target in {"base": BASE / "model.safetensors", "plan": RUN / "plan.json"}.items():
        shutil.copytree(BASE, OUTPUT / name, copy_function=shutil.copyfile)
        (OUTPUT / name).chmod(0o755)
        (OUTPUT / name / "model.safetensors").unlink()
        attempt(name, lambda n=name, t=target: os.link(t, OUTPUT / n / "model.safetensors"))
    tell("workspace", str(WORKSPACE))


play(linked_file, linked_folder, dotdot, special, hard_link)
