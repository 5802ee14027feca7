"""Gets the planned attempt running, with the service that it needs. Harmless if it runs already."""

from __future__ import annotations

from posttrain.blueprints.blueprint import Blueprint
from posttrain.blueprints.launch import Launcher, write_attempt
from posttrain.blueprints.paths import StatePaths
from posttrain.blueprints.readiness import readiness
from posttrain.blueprints.services import Service
from posttrain.blueprints.setting import Setting
from posttrain.blueprints.state import State, Timeline, session_name


class Starter:
    """Starts and closes what belongs to one experiment."""

    def __init__(
        self, setting: Setting, *, here: StatePaths, on_machine: StatePaths, timeline: Timeline
    ) -> None:
        self._setting = setting
        self._here = here
        self._on_machine = on_machine
        self._timeline = timeline
        self._launcher = Launcher(
            setting.machine, tmux=setting.tmux, policy=setting.policy, wake=setting.wake
        )

    def is_started(self, state: State) -> bool:
        """Whether the wrapper of the current attempt has reported (or may have: the machine is silent)."""
        attempt = self._on_machine.attempt(state.attempt.number)
        return self._setting.machine.probe(attempt).state != "absent"

    def attempt(self, state: State, blueprint: Blueprint) -> State:
        """The state with the session in which the current attempt runs. Raises LaunchFailed."""
        if self.is_started(state):
            return self._followed(state, blueprint)
        attempt = self._on_machine.attempt(state.attempt.number)
        variation = state.attempt.variation
        write_attempt(
            attempt,
            machine=self._setting.machine,
            folder=blueprint.codebase,
            command=variation.command,
            prefix=variation.prefix,
            env={**self._setting.environment(blueprint, gpu=state.gpu), **variation.env},
            deadline=state.deadline,
            policy=self._setting.policy,
        )
        name = session_name(state.name, blueprint.purpose)
        session = self._launcher.launch(attempt, name=name, session=state.session)
        where = f"in session {session.name}" if session else "without a session"
        self._timeline.add(f"attempt {state.attempt.number} runs {where}; log {attempt.log}")
        return state.model_copy(update={"session": session})

    def service(self, state: State, blueprint: Blueprint) -> State:
        """The state with a running service, if the blueprint asks for one. Raises ServiceFailed."""
        service = self._service(blueprint)
        if service is None or service.is_running():
            return state
        if service.machine.answers(service.ready):
            if not state.attempts[0].ending:
                self._timeline.add("the service answers already: it is used, and will not be stopped")
            return state
        self._timeline.add(f"starting the service: {service.command}")
        name = _service_name(state, blueprint)
        session = service.start(name=name, session=state.service_session, deadline=state.deadline)
        self._timeline.add("the service is ready")
        return state.model_copy(update={"service_session": session})

    def stop_service(self, state: State, blueprint: Blueprint) -> None:
        """End a service that was started for this experiment."""
        service = self._service(blueprint)
        if service is not None:
            service.stop()
            session = state.service_session or self._launcher.find(_service_name(state, blueprint))
            self._launcher.close(session, screen=self._here.service.screen, keep=False)

    def close_session(self, state: State) -> None:
        """Save the last screen; end the session unless it is to be kept."""
        screen = self._here.attempt(state.attempt.number).screen
        self._launcher.close(state.session, screen=screen, keep=self._setting.keep_session)

    def _followed(self, state: State, blueprint: Blueprint) -> State:
        if state.session is None:
            return state.model_copy(
                update={"session": self._launcher.find(session_name(state.name, blueprint.purpose))}
            )
        current = self._launcher.current(state.session)
        if current is None or current.name == state.session.name:
            return state
        self._timeline.add(f"the session is now called {current.name}")
        return state.model_copy(update={"session": current})

    def _service(self, blueprint: Blueprint) -> Service | None:
        if blueprint.service_command is None:
            return None
        return Service(
            command=blueprint.service_command,
            ready=readiness(blueprint.service_ready, blueprint.service_command),
            folder=blueprint.codebase,
            env=self._setting.environment(blueprint),
            attempt=self._on_machine.service,
            machine=self._setting.machine,
            launcher=self._launcher,
            policy=self._setting.policy,
            wake=self._setting.wake,
        )


def _service_name(state: State, blueprint: Blueprint) -> str:
    return f"{session_name(state.name, blueprint.purpose)}_service"
