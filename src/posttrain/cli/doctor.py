"""`posttrain doctor`: what is wrong with a checkpoint folder, and a copy that is mended."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from posttrain.cli.context import open_shelf
from posttrain.cli.output import print_json, printable, warn
from posttrain.cli.terminal import Console
from posttrain.core.errors import UsageError

if TYPE_CHECKING:
    from posttrain.checkpoints.doctor.examination import Compare


def doctor(
    path: Annotated[Path, typer.Argument(help="Folder of the checkpoint.")],
    base: Annotated[
        str | None, typer.Option(help="The base model it was made from: a name or a folder.")
    ] = None,
    fix: Annotated[Path | None, typer.Option(help="Write a mended copy to this new folder.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")] = False,
) -> int:
    """Diagnose a checkpoint; --fix writes a repaired copy.

    The same rules as in grading, and what vLLM or an older transformers would stumble over. With --base far
    more can be told and mended. Exit code 1 if there are faults; with --fix, if the copy still has some.
    """
    from posttrain.checkpoints.doctor import examine, write_copy
    from posttrain.infra.fetching import installed

    if not path.is_dir():
        raise UsageError(f"PATH: {path} is not a folder")
    folder, base_folder = path.resolve(), None if base is None else _base_folder(base, as_json)
    if not installed("numpy"):
        warn("weights are not read, only their headers: that needs pip install 'posttrain[train]'")
    compare = _reader(folder, base_folder) if installed("numpy") else None
    examination = examine(folder, base_folder, compare=compare)
    files = () if fix is None else write_copy(examination, fix)
    remaining = examination.faults if fix is None else examination.incurable
    if as_json:
        shown = [finding.model_dump(mode="json") for finding in examination.findings]
        print_json(
            {"ok": not remaining, "findings": shown, "copy": str(fix) if fix else None, "files": files}
        )
        return 1 if remaining else 0
    for finding in examination.findings:
        mended = " (mended in the copy)" if finding.mended and fix is not None else ""
        print(printable(f"{finding.level:<8} {finding.code:<20} {finding.text}{mended}"))
        if finding.remedy and not mended:
            print(printable(f"{'':<30}{finding.remedy}"))
    if fix is not None:
        print(printable(f"wrote {fix}: {', '.join(files)}"))
    elif any(finding.mended for finding in examination.faults):
        print("--fix OUT writes a copy without what can be mended")
    if not examination.faults:
        print("no faults")
    return 1 if remaining else 0


def _base_folder(base: str, as_json: bool) -> Path:
    from posttrain.infra.models import resolve_model

    shelf, say = open_shelf(), Console(beside_json=as_json).say
    return resolve_model(
        base, lab=shelf.paths, sources=shelf.sources, offline=shelf.offline, progress=say
    ).folder


def _reader(folder: Path, base: Path | None) -> Compare:
    from posttrain.checkpoints.comparing import Compared, compare_folders
    from posttrain.infra.processes import Spawner

    def compare() -> Compared:
        # without a base the folder is held against itself: its values are read all the same
        with TemporaryDirectory(prefix="posttrain-") as place, Spawner() as spawner:
            return compare_folders(folder, base or folder, spawner=spawner, log=Path(place) / "log")

    return compare
