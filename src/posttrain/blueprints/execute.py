"""Runs one blueprint to its end: begin, start, watch, judge, mend, report. This is the page to start at."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from posttrain.blueprints.begin import begin, read_blueprint, validation_of
from posttrain.blueprints.blueprint import Blueprint
from posttrain.blueprints.documents import Documents, write_documents
from posttrain.blueprints.launch import LaunchFailed
from posttrain.blueprints.machine import Unreachable
from posttrain.blueprints.mend import NoRepair, mend
from posttrain.blueprints.outcome import Outcome, judge
from posttrain.blueprints.paths import StatePaths
from posttrain.blueprints.services import ServiceFailed
from posttrain.blueprints.setting import Setting
from posttrain.blueprints.start import Starter
from posttrain.blueprints.state import Finish, State, Timeline, load_state, only_executor, save_state
from posttrain.blueprints.watch import Budget, Detached, Observation, watch
from posttrain.core.errors import UsageError
from posttrain.infra.digests import digest_bytes
from posttrain.infra.durations import format_duration


class Executor:
    """One blueprint file. May be killed at any point and made anew: what it knows is on disk."""

    def __init__(self, source: Path, *, paths: StatePaths, setting: Setting) -> None:
        self._source = source
        self._paths = paths
        self._on_machine = StatePaths(setting.machine.state_root(paths.root))
        self._setting = setting
        self._machine = setting.machine
        self._timeline = Timeline(paths.events, tell=setting.tell)
        self._starter = Starter(setting, here=paths, on_machine=self._on_machine, timeline=self._timeline)

    def run(self) -> Documents:
        """To the finish flag. Raises Detached when woken; the experiment then goes on."""
        text = read_blueprint(self._source)
        with only_executor(self._paths):
            state = self._open(text)
            while state.finish is None:
                state = self._patiently(self._step, state)
            return Documents.at(self._patiently(self._close, state))

    def _patiently(self, do: Callable[[State], State], state: State) -> State:
        """Do it, and do it again while the machine is out of reach: what was done is on disk."""
        while True:
            try:
                return do(state)
            except Unreachable as error:
                if time.time() > state.deadline + self._setting.policy.unreachable_after_s:
                    raise
                self._timeline.add(f"{error}; trying again")
                self._setting.wake.sleep(self._setting.policy.first_look_s)
                if self._setting.wake.is_set:
                    raise Detached("the executor left; the experiment goes on") from error
                state = load_state(self._paths) or state

    def _open(self, text: str) -> State:
        """The experiment as it stands on disk, or a new one."""
        digest = digest_bytes(text.encode())
        known = load_state(self._paths)
        if known is not None and not known.closed:
            if known.machine != self._machine.label:
                raise UsageError(
                    f"{self._source}: runs on {known.machine or 'this machine'}; watch it from there"
                )
            self._timeline.add("the executor was started again and goes on")
            if known.digest != digest:
                self._timeline.add("the blueprint file has changed; the experiment goes on as it began")
            return known
        if known is not None and known.digest == digest and not self._repeats(known):
            return known
        state = begin(text, digest=digest, source=self._source, paths=self._paths, setting=self._setting)
        limit = (
            f"limit {format_duration(state.deadline - state.started_at)}" if state.blueprint else "invalid"
        )
        self._timeline.add(f"experiment {state.name} begins; {limit}")
        return self._saved(state)

    def _repeats(self, known: State) -> bool:
        """An invalid blueprint is looked at again: what it lacked may be there now."""
        invalid = known.finish is not None and known.finish.outcome is Outcome.INVALID
        return self._setting.again or invalid or known.machine != self._machine.label

    def _step(self, state: State) -> State:
        """One attempt to its end, and what follows from it."""
        blueprint = _runnable(state)
        observation = self._observation(state, blueprint)
        if state.attempt.ending is not None:  # a former executor came so far
            observation.advance()
            return self._follow(state, blueprint, observation)
        try:
            state = self._start(state, blueprint)
        except (LaunchFailed, ServiceFailed) as error:
            return self._not_started(state, error)
        ending = watch(
            self._on_machine.attempt(state.attempt.number),
            machine=self._machine,
            observation=observation,
            policy=self._setting.policy,
            budget=Budget(state.started_at, state.deadline),
            wake=self._setting.wake,
        )
        told = f"{ending.cause} ({ending.stop_reason})" if ending.stop_reason else ending.cause
        self._timeline.add(f"attempt {state.attempt.number} ended: {told}, exit code {ending.exit_code}")
        state = self._saved(state.with_attempt(state.attempt.model_copy(update={"ending": ending})))
        return self._follow(state, blueprint, observation)

    def _start(self, state: State, blueprint: Blueprint) -> State:
        if self._paths.stop.exists() and not self._starter.is_started(state):
            raise LaunchFailed("stopped before the command was started")
        state = self._saved(self._starter.service(state, blueprint))
        return self._saved(self._starter.attempt(state, blueprint))

    def _not_started(self, state: State, error: LaunchFailed | ServiceFailed) -> State:
        if self._setting.wake.is_set:
            raise Detached("the executor left while starting") from error
        self._timeline.add(str(error))
        if self._paths.stop.exists():
            return self._finished(state, Outcome.STOPPED, "user")
        reason = "service_failed" if isinstance(error, ServiceFailed) else "launch_error"
        return self._finished(state, Outcome.FAILED, reason)

    def _follow(self, state: State, blueprint: Blueprint, observation: Observation) -> State:
        """Judge the attempt that has ended: finish, or mend and go on."""
        ending = state.attempt.ending
        assert ending is not None
        verdict = judge(ending, observation.detector)
        if verdict.outcome is not None:
            return self._finished(state, verdict.outcome, verdict.reason)
        if self._paths.stop.exists():
            return self._finished(state, Outcome.STOPPED, "user")
        state = state.with_attempt(state.attempt.model_copy(update={"finding": verdict.finding}))
        paths = self._on_machine.attempt(state.attempt.number)
        try:
            state, repair = mend(state, blueprint, attempt=paths, setting=self._setting)
        except NoRepair as error:
            self._timeline.add(f"{verdict.reason}: {error}")
            state = state.with_attempt(state.attempt.model_copy(update={"refused": error.refused}))
            return self._finished(state, Outcome.FAILED, verdict.reason)
        self._timeline.add(f"{verdict.reason}: repair by {repair.by}: {'; '.join(repair.changes)}")
        return self._saved(state)

    def _close(self, state: State) -> State:
        """Stop what is ours, write the documents and, last, the flag."""
        if state.closed:
            return state
        observation = None
        if state.blueprint is not None:
            self._starter.stop_service(state, state.blueprint)
            observation = self._observation(state, state.blueprint)
            observation.advance()
        state = write_documents(
            state,
            paths=self._paths,
            setting=self._setting,
            observation=observation,
            events=self._timeline.events(),
        )
        if state.attempts:
            self._starter.close_session(state)
        return self._saved(state)

    def _observation(self, state: State, blueprint: Blueprint) -> Observation:
        attempt = state.attempt
        return Observation(
            self._on_machine.attempt(attempt.number),
            machine=self._machine,
            validation=validation_of(attempt.variation, blueprint=blueprint, machine=self._machine),
            validation_offset=attempt.validation_offset,
        )

    def _finished(self, state: State, outcome: Outcome, reason: str) -> State:
        ending = state.attempt.ending if state.attempts else None
        exit_code = ending.exit_code if ending else None
        finish = Finish(outcome=outcome, reason=reason, exit_code=exit_code, at=time.time())
        self._timeline.add(f"finished: {outcome.value} ({reason})")
        return self._saved(state.model_copy(update={"finish": finish}))

    def _saved(self, state: State) -> State:
        save_state(self._paths, state)
        return state


def _runnable(state: State) -> Blueprint:
    if state.blueprint is None:
        raise UsageError(f"{state.source} is not a valid blueprint")
    return state.blueprint
