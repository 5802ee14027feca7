"""`posttrain provenance`: where a checkpoint's weights lie between its base and the base's siblings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from posttrain.cli.context import open_shelf
from posttrain.cli.output import print_json, print_table, printable
from posttrain.cli.terminal import Console
from posttrain.core.errors import Rejected, SubmissionFault, UsageError
from posttrain.core.grading import SiblingDelta


def provenance(
    path: Annotated[Path, typer.Argument(help="Folder of the checkpoint.")],
    base: Annotated[str, typer.Option(help="The base model it was made from: a name or a folder.")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")] = False,
) -> int:
    """Where weights lie between base and siblings.

    Numbers, and the flags that a grading would draw from them. Exit code 1 for a checkpoint that a grading
    would refuse, or flag as made from another model.
    """
    from posttrain.checkpoints.comparing import compare_folders, require_numpy
    from posttrain.checkpoints.provenance import flags_of, read_siblings, refuse_siblings
    from posttrain.infra.models import resolve_model
    from posttrain.infra.processes import Spawner

    require_numpy("posttrain provenance")
    if not path.is_dir():
        raise UsageError(f"PATH: {path} is not a folder")
    shelf, say = open_shelf(), Console(beside_json=as_json).say
    model = resolve_model(base, lab=shelf.paths, sources=shelf.sources, offline=shelf.offline, progress=say)
    siblings = read_siblings(shelf.paths, (model.id, model.name))
    with TemporaryDirectory(prefix="posttrain-") as place, Spawner() as spawner:
        try:
            found = compare_folders(
                path.resolve(), model.folder, spawner=spawner, log=Path(place) / "log", siblings=siblings
            )
        except SubmissionFault as fault:
            return _refused(fault, as_json)
    verdict: str | None = None
    try:
        refuse_siblings(found.provenance)
    except Rejected as fault:
        verdict = fault.reason
    flags = ("copy_of_base",) if found.provenance.copy_of_base else flags_of(found.provenance)
    if as_json:
        print_json({**found.provenance.model_dump(mode="json"), "flags": flags, "rejected": verdict})
    else:
        numbers = found.provenance
        print(f"changed elements  {100 * numbers.changed_share:.4f} %")
        print(f"relative L2       {numbers.relative_l2:.3e}")
        if not siblings:
            print(f"siblings          none registered for {model.id} ({shelf.paths.siblings})")
        else:
            _print_siblings(numbers.siblings)
        print(printable(f"flags             {', '.join(flags) or 'none'}"))
        if verdict is not None:
            print(printable(f"rejected          {verdict}"))
    return 1 if verdict is not None or any(flag.startswith("merge_of") for flag in flags) else 0


def _print_siblings(siblings: Sequence[SiblingDelta]) -> None:
    rows = [
        (
            printable(sibling.name),
            "yes" if sibling.identical else "no",
            "" if sibling.cosine is None else f"{sibling.cosine:+.4f}",
            "" if sibling.coefficient is None else f"{sibling.coefficient:+.4f}",
            f"{100 * sibling.aligned_share:.1f} %",
        )
        for sibling in siblings
    ]
    columns = ("sibling", "identical", "cosine", "coefficient", "aligned")
    print_table(columns, rows, right=columns[2:])


def _refused(fault: SubmissionFault, as_json: bool) -> int:
    if as_json:
        print_json({"rejected": str(fault), "hint": fault.hint, "flags": []})
    else:
        print(printable(f"not comparable    {fault}"))
        print(printable(f"                  {fault.hint}"))
    return 1
