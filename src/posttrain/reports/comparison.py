"""Comparing runs: means and intervals over repeated runs, lifts over the best control of the same setting."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from pydantic import Field

from posttrain.core.frozen import Frozen
from posttrain.core.runs import FormatControl
from posttrain.core.scores import Improvement
from posttrain.core.student import difference_interval, spread
from posttrain.reports.results import ResultRow

FOREIGN = "AutoRL-Bench: the best test score"
"""Mark of rows that another program wrote."""


class Facts(Frozen):
    """What a run's folder tells beyond its row; all empty where there is no folder any more."""

    timeout_s: float | None = None
    items: str = ""
    """Digest of the ids of the items that are reported, in order; known also where nothing was scored."""
    marks: tuple[str, ...] | None = None
    verdicts: dict[str, int] = Field(default_factory=dict)
    overfit: Improvement | None = None
    format_control: FormatControl | None = None
    accepted: bool | None = None
    """An operator's word on the run, if there is one."""
    why: str = ""
    """The reason that the operator gave."""


class Entry(NamedTuple):
    """One run: its row and what its folder tells."""

    row: ResultRow
    facts: Facts

    @property
    def improvement(self) -> float | None:
        """None where nothing was scored or the operator rejected the run: never averaged as 0."""
        # AutoRL-Bench writes a score of 0.0 for a run in which nothing was handed in
        empty = not self.row.protocol and self.row.submissions == 0
        return None if empty or self.facts.accepted is False else self.row.improvement

    @property
    def interval(self) -> tuple[float, float] | None:
        """Of the improvement, over items."""
        low, high = self.row.ci_low, self.row.ci_high
        if self.improvement is None or low is None or high is None:
            return None
        return low, high

    @property
    def marks(self) -> tuple[str, ...]:
        """What a reader has to know before comparing this run with another."""
        row, facts = self.row, self.facts
        if facts.marks is not None:
            found = list(facts.marks)
        else:
            found = [FOREIGN] if not row.protocol else []
            found += ["isolation: none"] if row.isolation == "none" else []
            found += ["network: host"] if row.network == "host" else []
            found += ["open"] if row.protocol == "open" else []
        if facts.accepted is not None:
            said = "accepted" if facts.accepted else "rejected"
            found.append(f"{said} by the operator")
        return tuple(found)


class Setting(NamedTuple):
    """What must be equal for two runs to be compared or averaged."""

    task: str
    base_model: str
    timeout_s: float | None
    protocol: str
    split: str
    n: int | None
    items: str
    engine: str


class Control(Frozen):
    """The best control of a setting: the one whose runs improved the most on average."""

    agent: str
    improvement: float
    runs: int


class Mean(Frozen):
    """A mean over runs."""

    mean: float
    interval: tuple[float, float] | None
    """95 % t-interval over the runs; None for one run."""
    runs: int


class Group(Frozen):
    """All runs of one agent in one setting."""

    task: str
    base_model: str
    timeout_s: float | None
    protocol: str
    split: str
    n: int | None
    engine: str
    agent: str
    driver_model: str
    is_control: bool
    runs: int
    not_scored: int
    """Runs without a result: told, never averaged as 0."""
    rejected: int
    """Of them those that the operator rejected."""
    baseline: float | None
    score: float | None
    """Mean, as the improvement."""
    improvement: float | None
    """Mean over the scored runs."""
    interval: tuple[float, float] | None
    """95 % t-interval of that mean over runs; None for one run."""
    item_interval: tuple[float, float] | None
    """Of one run alone: the interval of its improvement over items."""
    control: Control | None
    """The best control of the setting that is not the agent itself."""
    lift: float | None
    """Points by which the agent improved more than the control."""
    lift_interval: tuple[float, float] | None
    """95 %, Welch; needs two runs on both sides."""
    format_control: Mean | None
    """What a prompt alone gave the untouched base; None: not measured."""
    overfit: Mean | None
    """How far the validation score of the selected submission flattered."""
    verdicts: dict[str, int]
    """Of all submissions of these runs."""
    statuses: dict[str, int]
    marks: dict[str, int]
    """With the number of runs that carry each."""
    seeds: tuple[int, ...]
    run_ids: tuple[str, ...]


def setting(entry: Entry) -> Setting:
    """The setting of a run; what is not known compares with its like."""
    row, facts = entry.row, entry.facts
    return Setting(
        task=row.task,
        base_model=row.base_model,
        timeout_s=facts.timeout_s,
        protocol=row.protocol,
        split=row.split,
        n=row.n,
        items=facts.items,
        engine=row.engine,
    )


class Controls:
    """The controls of every setting that have a result."""

    def __init__(self, entries: Iterable[Entry], *, names: Collection[str]) -> None:
        """`names` are the agents that call themselves controls."""
        self._names = names
        self._values: dict[Setting, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        for entry in entries:
            if entry.improvement is not None and self.named(entry.row.agent):
                self._values[setting(entry)][entry.row.agent].append(entry.improvement)

    def named(self, agent: str) -> bool:
        """Whether the agent, whatever its profile, is a control."""
        return _base(agent) in self._names

    def best(self, agent: str, where: Setting) -> tuple[Control, Sequence[float]] | None:
        """The best control of a setting that is not the agent itself, and the gains of its runs."""
        others = {
            name: values
            for name, values in self._values.get(where, {}).items()
            if _base(name) != _base(agent)
        }
        if not others:
            return None
        name, values = max(others.items(), key=lambda item: fmean(item[1]))
        return Control(agent=name, improvement=fmean(values), runs=len(values)), values


def lift(entry: Entry, control: Control | None) -> float | None:
    """Points by which a run improved more than the control did on average."""
    if control is None or entry.improvement is None:
        return None
    return entry.improvement - control.improvement


def groups(entries: Sequence[Entry], *, controls: Controls) -> tuple[Group, ...]:
    """Runs of equal setting and agent together: settings as they appear, in each the best agent first."""
    settled = _settled(entries)
    together: dict[tuple[Setting, str, str], list[Entry]] = defaultdict(list)
    for entry, where in settled:
        together[(where, entry.row.agent, entry.row.driver_model)].append(entry)
    made = [_group(members, where, controls) for (where, _, _), members in together.items()]
    order = {where: place for place, where in enumerate(dict.fromkeys(where for where, _, _ in together))}
    ranked = zip(made, (order[where] for where, _, _ in together), strict=True)
    return tuple(group for group, _ in sorted(ranked, key=lambda pair: (pair[1], *_rank(pair[0]))))


def _rank(group: Group) -> tuple[bool, float]:
    return group.improvement is None, -(group.improvement or 0.0)


def _settled(entries: Sequence[Entry]) -> list[tuple[Entry, Setting]]:
    """Every run with its setting.

    A run without a score names no split and no number of items: it belongs to the scored runs that it
    agrees with in everything else, if these are of one setting.
    """
    found = [(entry, setting(entry)) for entry in entries]
    scored: dict[Setting, set[Setting]] = defaultdict(set)
    for _, where in found:
        if where.n is not None:
            scored[_without_numbers(where)].add(where)
            scored[_without_numbers(where)._replace(items="")].add(where)
    settled = []
    for entry, where in found:
        candidates = scored[_without_numbers(where)] if where.n is None else {where}
        settled.append((entry, next(iter(candidates)) if len(candidates) == 1 else where))
    return settled


def _without_numbers(where: Setting) -> Setting:
    return where._replace(split="", n=None)


def _group(members: Sequence[Entry], where: Setting, controls: Controls) -> Group:
    first = members[0].row
    scored = [entry for entry in members if entry.improvement is not None]
    values = [entry.improvement for entry in scored if entry.improvement is not None]
    gain = _mean(values)
    found = controls.best(first.agent, where) if values else None
    control, control_values = found if found is not None else (None, ())
    return Group(
        task=where.task,
        base_model=where.base_model,
        timeout_s=where.timeout_s,
        protocol=where.protocol,
        split=where.split,
        n=where.n,
        engine=where.engine,
        agent=first.agent,
        driver_model=first.driver_model,
        is_control=controls.named(first.agent),
        runs=len(members),
        not_scored=len(members) - len(scored),
        rejected=sum(entry.facts.accepted is False for entry in members),
        baseline=_plain_mean(entry.row.baseline for entry in scored),
        score=_plain_mean(entry.row.best_score for entry in scored),
        improvement=gain.mean if gain else None,
        interval=gain.interval if gain else None,
        item_interval=scored[0].interval if len(scored) == 1 else None,
        control=control,
        lift=gain.mean - control.improvement if gain and control else None,
        lift_interval=difference_interval(values, control_values),
        format_control=_mean(
            [e.facts.format_control.improvement.value for e in members if e.facts.format_control is not None]
        ),
        overfit=_mean([entry.facts.overfit.value for entry in scored if entry.facts.overfit is not None]),
        verdicts=_summed(entry.facts.verdicts for entry in members),
        statuses=dict(Counter(entry.row.status or "not told" for entry in members)),
        marks=_marks(members),
        seeds=tuple(entry.row.seed for entry in members if entry.row.seed is not None),
        run_ids=tuple(entry.row.run_id for entry in members),
    )


def _mean(values: Sequence[float]) -> Mean | None:
    if not values:
        return None
    found = spread(values)
    return Mean(mean=found.mean, interval=found.interval, runs=found.n)


def _plain_mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _summed(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return {name: count for name, count in total.items() if count}


def _marks(members: Sequence[Entry]) -> dict[str, int]:
    """Marks of runs and their numbers, and a mark of the group where a seed was used twice."""
    found = Counter(mark for entry in members for mark in entry.marks)
    seeds = Counter(entry.row.seed for entry in members if entry.row.seed is not None)
    again = sum(count - 1 for count in seeds.values())
    return dict(found) | ({"same seed again": again} if again else {})


def _base(agent: str) -> str:
    """An agent without its profile."""
    return agent.partition(":")[0]
