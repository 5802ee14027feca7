"""`posttrain run`: the options of one run, and what is printed when it is over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from posttrain.cli.context import ENGINE_HELP, open_lab
from posttrain.cli.output import gain, print_json, trained_and_prompted
from posttrain.cli.terminal import Console
from posttrain.core.errors import UsageError
from posttrain.core.paths import RunPaths
from posttrain.core.runs import DEFAULT_PORT, RunRecord, RunRequest, Status
from posttrain.core.scores import Score
from posttrain.infra.durations import format_duration, parse_duration

if TYPE_CHECKING:
    from posttrain.runs.lab import Lab

_STOPPED = {"SIGHUP": 129, "SIGINT": 130, "SIGTERM": 143}


def run(
    *,
    agent: Annotated[
        str | None, typer.Option("--agent", "-a", help="Agent folder, or folder:profile. Required.")
    ] = None,
    task: Annotated[str | None, typer.Option("--task", "-t", help="Task, or task:variant. Required.")] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", help="Base model: org/name, a folder, pypi:…, smollm2-135m. Required."),
    ] = None,
    timeout: Annotated[str, typer.Option(help="The agent's budget: 7200, 45m, 12h, 1h30m.")] = "12h",
    port: Annotated[int | None, typer.Option(help="Port of the grading server [default: 5000].")] = None,
    protocol: Annotated[
        Literal["holdout", "open"], typer.Option(help="Which data the agent sees and which score counts.")
    ] = "holdout",
    engine: Annotated[
        Literal["auto", "transformers", "vllm", "scripted"], typer.Option(help=ENGINE_HELP)
    ] = "auto",
    sandbox: Annotated[
        Literal["auto", "bwrap", "none"], typer.Option(help="How the agent is isolated.")
    ] = "auto",
    network: Annotated[
        Literal["grader", "host"] | None, typer.Option(help="What the agent reaches [default: its config].")
    ] = None,
    pass_env: Annotated[
        list[str] | None, typer.Option("--pass-env", help="Host variable the agent may see; repeatable.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Told to the agent, and used where sampling is on.")] = 0,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first N items of val and test.")] = None,
    max_submissions: Annotated[int, typer.Option(min=1, help="Cap on graded submissions.")] = 50,
    grading_timeout: Annotated[str, typer.Option(help="Limit of one grading.")] = "2h",
    grading_memory: Annotated[
        float, typer.Option(min=0.01, max=1.0, help="Share of the device's memory for grading.")
    ] = 0.25,
    split_salt: Annotated[
        Literal["public", "private"], typer.Option(help="Key of the splits: shared by all labs, or your own.")
    ] = "public",
    resume: Annotated[
        str | None, typer.Option("--resume", help="Go on with this interrupted run; takes all from it.")
    ] = None,
    allow_version_change: Annotated[
        bool, typer.Option("--allow-version-change", help="With --resume: a newer posttrain may go on.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The record as one JSON document.")] = False,
    context: typer.Context,
) -> int:
    """One run, start to record."""
    if resume is None:
        named = {"--agent": agent, "--task": task, "--model": model}
        missing = [name for name, value in named.items() if value is None]
        if missing:
            raise UsageError(f"{', '.join(missing)}: required (or --resume RUN)")
    request = RunRequest(
        agent=agent or "",
        task=task or "",
        model=model or "",
        timeout_s=parse_duration(timeout, field="--timeout"),
        port=DEFAULT_PORT if port is None else _port(port),
        port_given=port is not None,
        protocol=protocol,
        engine=engine,
        sandbox=sandbox,
        network=network,
        pass_env=tuple(pass_env or ()),
        seed=seed,
        limit=limit,
        max_submissions=max_submissions,
        grading_timeout_s=parse_duration(grading_timeout, field="--grading-timeout"),
        grading_memory=grading_memory,
        split_salt=split_salt,
    )
    from posttrain.runs import orchestrator  # FastAPI and the like: not for --help

    lab, terminal = open_lab(writable=True), Console(beside_json=as_json)
    closed = False
    if resume is None:
        record = orchestrator.run(request, lab=lab, terminal=terminal)
    else:
        closed = _check_against(resume, request, given=_given(context), lab=lab)
        if closed:
            terminal.say(f"run {resume} is over: nothing is left to do")
        record = orchestrator.resume(
            resume, lab=lab, terminal=terminal, allow_version_change=allow_version_change
        )
    if as_json:
        print_json(record)
    else:
        paths = lab.paths.find_run(record.run_id)
        assert paths is not None
        _summarise(record, paths)
    return 0 if closed else exit_code(record)


def _given(context: typer.Context) -> set[str]:
    """Names of the parameters that stood on the command line."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}


def _check_against(run_id: str, asked: RunRequest, *, given: set[str], lab: Lab) -> bool:
    """A resumed run is what it was; UsageError names an option beside --resume that says otherwise.

    Returns whether the run is closed, so that nothing is left to do.
    """
    from posttrain.runs.resuming import closed_record, read_request

    paths = lab.paths.find_run(run_id)
    if paths is None:
        raise UsageError(f"--resume: no run {run_id!r} in {lab.paths.home} (see posttrain list runs)")
    kept = read_request(paths)
    for name in sorted(given):
        field = {"timeout": "timeout_s", "grading_timeout": "grading_timeout_s"}.get(name, name)
        if field in RunRequest.model_fields and getattr(asked, field) != getattr(kept, field):
            option = f"--{name.replace('_', '-')}"
            raise UsageError(
                f"{option}: run {run_id} was started with {getattr(kept, field)!r}; leave the option out"
            )
    return closed_record(paths) is not None


def _port(port: int) -> int:
    if not 0 <= port <= 65535:
        raise UsageError(f"--port: {port} is not a port; name one from 0 to 65535, 0 for any free one")
    return port


def exit_code(record: RunRecord) -> int:
    """0: a result exists, good or bad. 1: nothing graded, or an error. 128 + n: stopped by a signal."""
    if record.status is Status.INTERRUPTED:
        return next((code for name, code in _STOPPED.items() if name in (record.reason or "")), 1)
    return 0 if record.result is not None and record.status is not Status.ERROR else 1


def _summarise(record: RunRecord, paths: RunPaths) -> None:
    print(f"status {record.status.value}" + (f": {record.reason}" if record.reason else ""))
    result = record.result
    if result is None:
        print(f"result: none ({_why_none(record)})")
    else:
        print(f"baseline {result.split}  {_shown(result.baseline)}")
        print(f"result {result.split}    {_shown(result.score)}  (submission {result.submission_id})")
        p_value = result.improvement.p_value
        told = "" if p_value is None else f", p = {p_value:.2g}"
        print(f"improvement    {gain(result.improvement.value, result.improvement.ci95)} points{told}")
        print(f"format         {trained_and_prompted(record)}")
        _print_beside(result.baseline, result.score)
        if result.overfit is not None:
            print(f"over-fit       {gain(result.overfit.value, result.overfit.ci95)} points")
    if record.marks:
        print(f"marks          {'; '.join(record.marks)}")
    print(f"agent's time   {format_duration(record.duration_s)}")
    for path in (paths.figures / "score_trajectory.png", paths.metrics, paths.record):
        if path.exists():
            print(f"  {path}")


def _why_none(record: RunRecord) -> str:
    graded = record.verdicts.get("graded", 0)
    if not graded:
        return "nothing was graded"
    return f"{graded} graded, none tested yet: posttrain run --resume {record.run_id} goes on"


def _shown(score: Score) -> str:
    low, high = score.ci95
    return f"{score.value:.1f} [{low:.1f}, {high:.1f}], n = {score.n}"


def _print_beside(baseline: Score, score: Score) -> None:
    """What keeps a gain in format from being sold as one in skill."""
    for name in sorted(score.secondary):
        if name in baseline.secondary:
            print(f"  {name}: {baseline.secondary[name]:.1f} -> {score.secondary[name]:.1f}")
    if score.constant_guess is not None:
        print(f"  best constant answer: {score.constant_guess:.1f}")
