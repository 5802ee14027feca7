"""Writes the documents of an ended experiment; the flag comes last, so that it can be trusted."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from posttrain.blueprints.compare import compared_with
from posttrain.blueprints.curve import Curve, curve_csv, curve_lines, draw_curve
from posttrain.blueprints.machine import Machine
from posttrain.blueprints.outcome import Outcome
from posttrain.blueprints.paths import ResultPaths, StatePaths
from posttrain.blueprints.repair import WriteCopy
from posttrain.blueprints.report import Report, make_report
from posttrain.blueprints.result_md import result_md
from posttrain.blueprints.setting import Setting
from posttrain.blueprints.state import Event, State
from posttrain.blueprints.trial_md import trial_md
from posttrain.blueprints.watch import Observation
from posttrain.core.frozen import Frozen

_LOG_LIMIT = 64 << 20
_LAST_LINES = 20
_LAST_BYTES = 16_000
_LONGEST_LINE = 200


class Documents(Frozen):
    """Where the documents of an ended experiment lie, and how it ended."""

    outcome: Outcome
    reason: str
    folder: Path
    wanted: Path | None
    """The result folder of the blueprint, where the documents could not be written to it."""

    @property
    def exit_code(self) -> int:
        return 2 if self.wanted is not None else self.outcome.exit_code

    @classmethod
    def at(cls, state: State) -> Documents:
        """Of an experiment that is closed."""
        assert state.finish is not None
        assert state.documents is not None
        misplaced = state.results is not None and state.results != state.documents
        return cls(
            outcome=state.finish.outcome,
            reason=state.finish.reason,
            folder=state.documents,
            wanted=state.results if misplaced else None,
        )


def write_documents(
    state: State,
    *,
    paths: StatePaths,
    setting: Setting,
    observation: Observation | None,
    events: Sequence[Event],
) -> State:
    """Into the result folder, or into the state folder here where that cannot be written."""
    writer = _Writer(state, paths=paths, setting=setting, observation=observation, events=events)
    if state.results is not None:
        try:
            writer.write(ResultPaths(state.results), target=setting.machine)
            return state.model_copy(update={"documents": state.results})
        except OSError as error:
            setting.tell(f"{state.results} cannot be written: {error}")
    writer.write(paths.documents, target=setting.here)
    return state.model_copy(update={"documents": paths.root})


class _Writer:
    def __init__(
        self,
        state: State,
        *,
        paths: StatePaths,
        setting: Setting,
        observation: Observation | None,
        events: Sequence[Event],
    ) -> None:
        self._state = state
        self._paths = paths
        self._machine = setting.machine
        self._on_machine = StatePaths(setting.machine.state_root(paths.root))
        self._observation = observation
        self._report = make_report(
            state,
            observation,
            events=events,
            compared=compared_with(state.source, machine=setting.machine),
            last_lines=self._last_lines(),
        )

    def write(self, folder: ResultPaths, *, target: Machine) -> None:
        report = self._report
        for attempt in report.attempts:
            self._copy_log(attempt.number, folder, target)
            for action in attempt.repair.actions if attempt.repair else ():
                if isinstance(action, WriteCopy):
                    target.write(folder.repair(attempt.number) / action.path.name, action.text.encode())
        figure = self._figure(folder, target)
        target.write(folder.trial_and_error, trial_md(report.name, report.attempts).encode())
        target.write(folder.result, result_md(report, figure=figure).encode())
        target.write(folder.result_json, _json(report.model_dump(mode="json")))
        target.write(folder.flag, _json(_flag(report, folder.root)))

    def _copy_log(self, number: int, folder: ResultPaths, target: Machine) -> None:
        log = self._on_machine.attempt(number).log
        if target is self._machine:
            target.copy(log, folder.log(number), limit=_LOG_LIMIT)
        elif raw := self._machine.tail(log, limit=_LOG_LIMIT):
            target.write(folder.log(number), raw)

    def _figure(self, folder: ResultPaths, target: Machine) -> str:
        """The line of result.md; the figure is drawn here and then put where the documents are."""
        metrics = self._observation.metrics if self._observation else None
        lines = curve_lines(metrics.evaluations, metrics.training) if metrics else ()
        if not lines:
            return "No figure: the run reported no values over time."
        target.write(folder.curve_csv, curve_csv(lines).encode())
        assert metrics is not None
        kind = "evaluations" if len(metrics.evaluations) >= 2 else "training"
        drawn = self._paths.root / "drawing.png"
        why = draw_curve(Curve(title=self._report.name, kind=kind, lines=lines, target=str(drawn)))
        if why is not None:
            return why
        target.write(folder.curve, drawn.read_bytes())
        drawn.unlink()
        return f"![{kind} over steps]({folder.curve.name})"

    def _last_lines(self) -> list[str]:
        if not self._state.attempts:
            return []
        log = self._on_machine.attempt(self._state.attempt.number).log
        text = self._machine.tail(log, limit=_LAST_BYTES).decode("utf-8", "replace")
        return [_shortened(line) for line in text.splitlines()[-_LAST_LINES:]]


def _shortened(line: str) -> str:
    return line if len(line) <= _LONGEST_LINE else f"{line[:_LONGEST_LINE]} …"


def _flag(report: Report, folder: Path) -> dict[str, Any]:
    return {
        "outcome": report.outcome.value,
        "reason": report.reason,
        "exit_code": report.exit_code,
        "started_at": report.started_at,
        "finished_at": report.finished_at,
        "duration_s": report.duration_s,
        "blueprint": str(report.blueprint),
        "name": report.name,
        "documents": str(folder),
    }


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()
