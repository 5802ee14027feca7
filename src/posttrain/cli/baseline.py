"""`posttrain baseline`: the untouched base, as a run would measure it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from posttrain.cli.context import ENGINE_HELP, open_lab
from posttrain.cli.output import points, print_json, print_table
from posttrain.cli.terminal import Console
from posttrain.core.runs import RunRequest

_NOBODY = "noop"
"""A baseline needs no agent; a request does."""


def baseline(
    task: Annotated[str, typer.Option("--task", "-t", help="Task, or task:variant.")],
    model: Annotated[
        str, typer.Option("--model", "-m", help="Base model: org/name, a folder, pypi:…, smollm2-135m.")
    ],
    protocol: Annotated[
        Literal["holdout", "open"], typer.Option(help="holdout: val and test; open: test.")
    ] = "holdout",
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first N items of val and test.")] = None,
    engine: Annotated[
        Literal["auto", "transformers", "vllm", "scripted"], typer.Option(help=ENGINE_HELP)
    ] = "auto",
    seed: Annotated[int, typer.Option(help="Used where sampling is on.")] = 0,
    split_salt: Annotated[
        Literal["public", "private"], typer.Option(help="Key of the splits: shared by all labs, or your own.")
    ] = "public",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")] = False,
) -> None:
    """Measure or show the baseline of a model on a task.

    What a run with the same options would use: read where it was measured before, else measured and kept.
    """
    from posttrain.runs.standalone import Baseline, measure_baseline

    request = RunRequest(
        agent=_NOBODY,
        task=task,
        model=model,
        port=0,
        protocol=protocol,
        limit=limit,
        engine=engine,
        seed=seed,
        split_salt=split_salt,
    )
    lab = open_lab(writable=True)
    measured = measure_baseline(request, lab=lab, terminal=Console(beside_json=as_json))

    def as_data(one: Baseline) -> dict[str, Any]:
        score = one.assessment.evaluation.score
        return {"split": one.split, "score": score.value, "n": score.n, "ci95": score.ci95} | {
            "cached": one.cached,
            "details": score,
        }

    if as_json:
        print_json({"task": task, "model": model, "baselines": [as_data(one) for one in measured]})
        return
    print_table(
        ("split", "score", "interval", "n", "constant", "cached"),
        [_line(one) for one in measured],
        right=("score", "n", "constant"),
    )


def _line(one: Any) -> tuple[str, ...]:
    score = one.assessment.evaluation.score
    return (
        one.split,
        points(score.value),
        f"[{points(score.ci95[0])}, {points(score.ci95[1])}]",
        str(score.n),
        points(score.constant_guess),
        "yes" if one.cached else "",
    )
