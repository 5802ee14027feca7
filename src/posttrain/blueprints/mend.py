"""After a failure: asks for a repair and carries it out, within the bounds."""

from __future__ import annotations

import time

from posttrain.blueprints.attempt import AttemptPaths
from posttrain.blueprints.begin import plan_attempt
from posttrain.blueprints.blueprint import Blueprint
from posttrain.blueprints.repair import RefusedRepair, Repair, RepairCase, carry_out, first_proposal
from posttrain.blueprints.setting import Setting
from posttrain.blueprints.state import State
from posttrain.core.errors import PosttrainError

_TAIL_BYTES = 20_000
_LEAST_TIME_S = 1.0
"""With less than this left of the limit nothing is tried."""


class NoRepair(PosttrainError):
    """The failure stands; says why, and which proposals were refused."""

    def __init__(self, reason: str, *, refused: tuple[str, ...] = ()) -> None:
        super().__init__("; ".join((reason, *refused)))
        self.refused = refused


def mend(
    state: State, blueprint: Blueprint, *, attempt: AttemptPaths, setting: Setting
) -> tuple[State, Repair]:
    """The state with the next attempt planned, and the repair that was carried out. Raises NoRepair."""
    if len(state.attempts) > setting.policy.max_repairs:
        raise NoRepair(f"{setting.policy.max_repairs} repair(s) have been made already")
    if state.deadline - time.time() < _LEAST_TIME_S:
        raise NoRepair("no time is left for a repair")
    repair, refused = first_proposal(_case(state, blueprint, attempt, setting), setting.repairers)
    if repair is None:
        raise NoRepair("no repair is known", refused=refused)
    try:
        carry_out(repair, blueprint=blueprint, machine=setting.machine)
    except (RefusedRepair, OSError) as error:
        why = f"{repair.by}: {error}"
        raise NoRepair("a repair could not be carried out", refused=(*refused, why)) from error
    ended = state.attempt.model_copy(update={"repair": repair, "refused": refused})
    following = plan_attempt(
        state.attempt.number + 1, repair.variation, blueprint=blueprint, machine=setting.machine
    )
    return state.with_attempt(ended).with_attempt(following), repair


def _case(state: State, blueprint: Blueprint, paths: AttemptPaths, setting: Setting) -> RepairCase:
    attempt = state.attempt
    assert attempt.ending is not None
    assert attempt.finding is not None
    log = setting.machine.tail(paths.log, limit=_TAIL_BYTES)
    yaml = setting.machine.read(attempt.variation.yaml) or b""
    return RepairCase(
        blueprint=blueprint,
        variation=attempt.variation,
        finding=attempt.finding,
        ending=attempt.ending,
        yaml_text=yaml.decode("utf-8", "replace"),
        log_tail=log.decode("utf-8", "replace"),
        earlier=tuple(other.repair for other in state.attempts if other.repair is not None),
        number=attempt.number,
        seconds_left=max(0.0, state.deadline - time.time()),
    )
