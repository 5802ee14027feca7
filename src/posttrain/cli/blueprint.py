"""`posttrain blueprint check|run|status|stop` and `posttrain wait`."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from posttrain.blueprints.batch import Ran, run_batch, run_one
from posttrain.blueprints.check import check as check_text
from posttrain.blueprints.environment import without_secrets
from posttrain.blueprints.inspect import Standing, ask_to_stop, standing, standings
from posttrain.blueprints.local import LocalMachine
from posttrain.blueprints.machine import Machine, Wake
from posttrain.blueprints.paths import StatePaths
from posttrain.blueprints.policy import Policy
from posttrain.blueprints.repair import Repairer
from posttrain.blueprints.rules import RuleBook
from posttrain.blueprints.setting import Setting
from posttrain.blueprints.ssh import SshMachine
from posttrain.blueprints.state import experiment_name
from posttrain.blueprints.waiting import wait_for
from posttrain.cli.output import print_json, print_table, printable
from posttrain.core.errors import PosttrainError, Stopped, UsageError
from posttrain.core.paths import LabPaths
from posttrain.infra.durations import format_duration, parse_duration
from posttrain.infra.settings import read_settings
from posttrain.infra.tmux import Tmux

app = typer.Typer(no_args_is_help=True, help="Experiment blueprints: check, run, look at, stop.")

Files = Annotated[list[Path], typer.Argument(help="Blueprint files.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")]
Ssh = Annotated[
    str | None,
    typer.Option("--ssh", help='Run on another machine: arguments of ssh, as "root@host -p 8824".'),
]


@app.command()
def check(files: Files, ssh: Ssh = None, as_json: Json = False) -> int:
    """List what is missing or wrong, with the line. Exit 1 if there is an error."""
    found = {file: _check(file, _machine(ssh)) for file in files}
    failed = any(problem.level == "error" for problems in found.values() for problem in problems)
    if as_json:
        print_json([{"file": str(file), "problems": list(problems)} for file, problems in found.items()])
        return int(failed)
    for file, problems in found.items():
        for problem in problems:
            print(printable(f"{file}:{problem.line}: {str(problem).partition(': ')[2]}"))
        if not any(problem.level == "error" for problem in problems):
            print(f"{file}: ok" + (f", {len(problems)} warning(s)" if problems else ""))
    return int(failed)


@app.command()
def run(
    files: Files,
    gpus: Annotated[
        str | None, typer.Option(help="Run side by side, one blueprint a GPU: 0,1.", show_default=False)
    ] = None,
    no_tmux: Annotated[bool, typer.Option("--no-tmux", help="Run without tmux sessions.")] = False,
    keep_session: Annotated[
        bool, typer.Option("--keep-session", help="Leave the tmux session when the experiment has ended.")
    ] = False,
    ssh: Ssh = None,
    pass_env: Annotated[
        list[str] | None,
        typer.Option("--pass-env", help="Hand this variable on although it looks like a secret."),
    ] = None,
    no_llm: Annotated[
        bool, typer.Option("--no-llm", help="Repair by rules alone, also where CHAT_MODEL names a model.")
    ] = False,
    max_repairs: Annotated[int, typer.Option(min=0, help="How often a failed run is repaired.")] = 3,
    stuck_after: Annotated[
        str, typer.Option(help="Without output, CPU or GPU use for this long is stuck.")
    ] = "30m",
    again: Annotated[bool, typer.Option("--again", help="Run a finished blueprint once more.")] = False,
    as_json: Json = False,
) -> int:
    """Run to the end: exit 0 succeeded or time limit, 1 failed or stopped, 2 invalid; the highest of all."""
    sources = list(dict.fromkeys(file.resolve() for file in files))
    stuck_s = parse_duration(stuck_after, field="--stuck-after")
    policy = Policy(
        max_repairs=max_repairs,
        stuck_after_s=stuck_s,
        longest_look_s=min(960.0, max(stuck_s, 30.0)),
        sample_s=min(30.0, max(1.0, stuck_s / 3)),
    )
    with _Signals() as signals:
        setting = _setting(
            _machine(ssh), policy=policy, wake=signals.wake, tmux=not no_tmux, pass_env=tuple(pass_env or ())
        )
        if not no_llm:
            setting = replace(setting, repairers=(*setting.repairers, *_llm_repairers(setting)))
        setting = replace(setting, keep_session=keep_session, again=again)
        ran = run_batch(
            sources,
            home=_blueprints(),
            setting=setting,
            gpus=_gpus(gpus),
            done=lambda one: None if as_json else _tell(one),
        )
    if len(ran) < len(sources):
        signals.check("what runs goes on; the same command watches it, `posttrain blueprint stop` ends it")
    if as_json:
        print_json([_as_data(one) for one in ran])
    return max((one.exit_code for one in ran), default=0)


@app.command()
def status(
    files: Annotated[list[Path] | None, typer.Argument(help="Blueprint files; all if left out.")] = None,
    as_json: Json = False,
) -> int:
    """Show where experiments stand: phase, time used, step and ETA, last values."""
    home = _blueprints()
    if files:
        shown = [standing(file.resolve(), home=home, machine_of=_machine) for file in files]
    else:
        shown = list(standings(home, machine_of=_machine))
    if as_json:
        print_json(shown)
        return 0
    if not shown:
        print(f"no experiments in {home}")
        return 0
    columns = ("name", "state", "attempt", "used", "limit", "step", "ETA", "last value", "session")
    print_table(columns, [_row(one) for one in shown], right=("used", "limit", "step", "ETA"))
    return 0


@app.command()
def stop(files: Files) -> int:
    """End experiments of these blueprints, and wait until their documents are there."""
    home = _blueprints()
    for file in files:
        state = ask_to_stop(file.resolve(), home=home, machine_of=_machine)
        if not state.closed:  # nobody is at work on it, so its documents are ours to write
            with _Signals() as signals:
                setting = _setting(
                    _machine(state.machine),
                    policy=Policy(),
                    wake=signals.wake,
                    tmux=state.session is not None,
                )
                run_one(file.resolve(), home=home, setting=setting)
        shown = standing(file.resolve(), home=home, machine_of=_machine)
        print(printable(f"{file}: {shown.state}; documents in {shown.documents}"))
    return 0


def wait(
    session: Annotated[str, typer.Argument(help="Name of a tmux session.")],
    seconds: Annotated[str, typer.Argument(help="How long at most; fractions are allowed.")],
) -> int:
    """Wait; exit 0 still running, 1 command ended or session gone, 2 cannot tell: look again."""
    limit = _seconds(seconds)
    with _Signals() as signals:
        try:
            tmux = Tmux(env=without_secrets(os.environ))
        except UsageError:
            tmux = None
        try:
            waited = wait_for(
                session, limit, home=_blueprints(), tmux=tmux, machine_of=_machine, wake=signals.wake
            )
        except PosttrainError as error:
            raise UsageError(f"cannot tell: {error}") from error  # 1 would say that the command has ended
    signals.check("stopped waiting")
    return int(waited)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 366 * 86400:
        raise UsageError(f"SECONDS: {text!r} is not a number of seconds")
    return seconds


def _setting(
    machine: Machine, *, policy: Policy, wake: Wake, tmux: bool, pass_env: tuple[str, ...] = ()
) -> Setting:
    return Setting(
        machine=machine,
        here=machine if machine.label is None else LocalMachine(env=os.environ),
        tmux=Tmux(env=without_secrets(os.environ)) if tmux else None,
        repairers=(RuleBook(machine),),
        policy=policy,
        wake=wake,
        tell=lambda text: print(printable(text), file=sys.stderr, flush=True),
        pass_env=pass_env,
    )


def _llm_repairers(setting: Setting) -> tuple[Repairer, ...]:
    """The model that CHAT_MODEL names; none where it is not set, or cannot be used, which is told."""
    if not os.environ.get("CHAT_MODEL", "").strip():
        return ()
    from posttrain.blueprints.llm_repair import LlmRepairer
    from posttrain.llm.client import LlmClient, provider_for
    from posttrain.llm.settings import LlmSettings
    from posttrain.llm.transcript import Transcript

    home = _blueprints()
    try:
        settings = LlmSettings.from_environment(os.environ)
        provider_for(settings)
    except UsageError as error:
        setting.tell(f"repairs by rules alone: {error}")
        return ()

    def client(source: Path, remaining: Callable[[], float]) -> LlmClient:
        path = StatePaths(home / experiment_name(source)).transcript
        transcript = Transcript(path, secrets=settings.secrets)
        return LlmClient(settings, transcript=transcript, remaining=remaining)

    return (LlmRepairer(setting.machine, client),)


def _check(file: Path, machine: Machine) -> tuple[Any, ...]:
    try:
        text = file.read_text("utf-8-sig")
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{file}: not UTF-8 (byte {error.start})") from error
    return check_text(text, source=file, machine=machine).problems


def _machine(ssh: str | None) -> Machine:
    if ssh is None:
        return LocalMachine(env=os.environ)
    return SshMachine(ssh, env=without_secrets(os.environ, keep=("SSH_AUTH_SOCK",)))


def _blueprints() -> Path:
    return LabPaths(read_settings().home).blueprints


def _gpus(text: str | None) -> tuple[str, ...]:
    names = tuple(name.strip() for name in (text or "").split(","))
    if text is not None and (not all(names) or len(set(names)) < len(names)):
        raise UsageError(f"--gpus: {text!r} is not a list of different GPUs, as 0,1")
    return names if text is not None else ()


class _Signals:
    """Signals let the executor leave; what runs in a session goes on."""

    def __init__(self) -> None:
        self.wake = Wake()
        self.received: int | None = None

    def __enter__(self) -> _Signals:
        numbers = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            numbers.append(signal.SIGHUP)
        self._before = {number: signal.signal(number, self._leave) for number in numbers}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self.wake.close()

    def _leave(self, number: int, _frame: Any) -> None:
        self.received = self.received or number
        self.wake.set()

    def check(self, told: str) -> None:
        """Raise Stopped, with a line for people, if a signal has come."""
        if self.received is not None:
            print(f"posttrain: {told}", file=sys.stderr)
            raise Stopped(self.received)


def _tell(one: Ran) -> None:
    if one.documents is None:
        print(printable(f"{one.source}: {one.error}"), file=sys.stderr)
        return
    ended = one.documents
    print(printable(f"{one.source}: {ended.outcome.value} ({ended.reason}); documents in {ended.folder}"))
    if ended.wanted is not None:
        print(
            printable(f"posttrain: {ended.wanted} cannot be written; the documents are in {ended.folder}"),
            file=sys.stderr,
        )


def _as_data(one: Ran) -> dict[str, Any]:
    data: dict[str, Any] = {"file": str(one.source), "exit_code": one.exit_code}
    if one.documents is None:
        return {**data, "error": str(one.error)}
    return {**data, **one.documents.model_dump(mode="json")}


def _row(one: Standing) -> tuple[str, ...]:
    return (
        one.name,
        one.state,
        str(one.attempt),
        format_duration(one.used_s),
        format_duration(one.limit_s),
        one.progress.text if one.progress else "",
        format_duration(one.progress.eta_s) if one.progress and one.progress.eta_s is not None else "",
        printable(one.last_value),
        one.session or "",
    )
