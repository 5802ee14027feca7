"""Judged items become a score: value, intervals, secondary metrics, and what a reader must be warned of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from posttrain.core.scores import Evaluation, Item, ItemResult, Metric, Output, Score
from posttrain.core.statistics import binary_standard_error, wilson
from posttrain.evaluators.bootstrap import bca_interval, standard_error, weighted_mean

NO_RULE = "none"
FEW_ITEMS = 100
_MANY_CUT = 0.1
_MANY_SILENT = 0.5


@dataclass(frozen=True)
class Judgement:
    """What one output is worth."""

    value: float
    extracted: str | None = None
    rule: str | None = None
    strict: float | None = None
    reason: str | None = None
    secondary: Mapping[str, float] = field(default_factory=dict)


def evaluation(
    items: Sequence[Item],
    outputs: Sequence[Output],
    judgements: Sequence[Judgement],
    *,
    metric: Metric,
    macro: bool = False,
    constant: str | None = None,
    warnings: Sequence[str] = (),
) -> Evaluation:
    """The evaluation of `items`, each judged once per sample, samples of one item side by side.

    `constant` names the gold label of items that are guessable: see `constant_guess`.
    """
    if not items:
        raise ValueError("a split without items has no score")
    samples, rest = divmod(len(outputs), len(items))
    if rest or samples == 0 or len(judgements) != len(outputs):
        raise ValueError(f"{len(outputs)} outputs and {len(judgements)} judgements for {len(items)} items")
    results = [
        _folded(item, judgements[at : at + samples], outputs[at : at + samples])
        for item, at in zip(items, range(0, len(outputs), samples), strict=True)
    ]
    guess = constant_guess(items, constant, macro=macro) if constant else None
    score = score_of(results, metric=metric, macro=macro)
    cut_share = sum(output.cut for output in outputs) / len(outputs)
    rules = Counter(judgement.rule or NO_RULE for judgement in judgements)
    told = (*score.warnings, *warnings_about(cut_share, rules), *warnings)
    full = score.model_copy(
        update={
            "constant_guess": guess,
            "cut_share": cut_share,
            "rules": dict(sorted(rules.items())),
            "warnings": told,
        }
    )
    return Evaluation(score=full, items=tuple(results))


def score_of(results: Sequence[ItemResult], *, metric: Metric, macro: bool) -> Score:
    """The score of item results alone; cut share, rules and the constant guess are left at their defaults."""
    strata = by_stratum(results, macro=macro)
    value = weighted_mean(strata, macro=macro)
    values = [result.value for result in results]
    n = len(values)
    binary = not macro and is_binary(results)
    interval = None if binary else bca_interval(strata, macro=macro)
    # a bootstrap of equal values has no width; Wilson's interval at the same share is the honest one
    low, high = interval or wilson(min(max(value * n, 0.0), float(n)), n)
    error = binary_standard_error(value, n) if binary else standard_error(strata, macro=macro)
    return Score(
        metric=metric,
        value=_points(value),
        n=n,
        stderr=100 * error,
        ci95=(_points(low), _points(high)),
        secondary=_secondary(results),
        warnings=(f"only {n} items: read the interval, not the number",) if n < FEW_ITEMS else (),
        macro=macro,
    )


def by_stratum(results: Sequence[ItemResult], *, macro: bool) -> dict[str, list[float]]:
    """Values by stratum; one stratum of all items where the score is no macro average."""
    strata: dict[str, list[float]] = {}
    for result in results:
        strata.setdefault((result.stratum or "") if macro else "", []).append(result.value)
    return strata


def is_binary(results: Sequence[ItemResult]) -> bool:
    """Whether every item is plainly right or wrong."""
    return all(result.value in (0.0, 1.0) for result in results)


def constant_guess(items: Sequence[Item], gold_field: str, *, macro: bool) -> float:
    """What the best constant answer scores, in percent: per stratum and averaged where the score is."""
    strata: dict[str, Counter[str]] = {}
    for item in items:
        label = str(item.fields.get(gold_field))
        strata.setdefault((item.stratum or "") if macro else "", Counter())[label] += 1
    shares = [max(counts.values()) / counts.total() for counts in strata.values()]
    return _points(sum(shares) / len(shares))


def _folded(item: Item, judged: Sequence[Judgement], outputs: Sequence[Output]) -> ItemResult:
    """One item's samples as one result: values are averaged, the text shown is the first sample's."""
    first = judged[0]
    strict = [j.strict for j in judged if j.strict is not None]
    secondary = {
        name: sum(j.secondary.get(name, 0.0) for j in judged) / len(judged)
        for name in sorted({name for j in judged for name in j.secondary})
    }
    return ItemResult(
        id=item.id,
        value=sum(j.value for j in judged) / len(judged),
        extracted=first.extracted,
        rule=first.rule,
        strict=sum(strict) / len(strict) if strict else None,
        cut=any(output.cut for output in outputs),
        stratum=item.stratum,
        reason=next((j.reason for j in judged if j.reason), None),
        secondary=secondary,
    )


def _secondary(results: Sequence[ItemResult]) -> dict[str, float]:
    """Means in percent: strict format, each named value over the items that have it, each stratum."""
    columns: dict[str, list[float]] = {}
    strata = {result.stratum for result in results}
    for result in results:
        if result.strict is not None:
            columns.setdefault("strict_format", []).append(result.strict)
        for name, value in result.secondary.items():
            columns.setdefault(name, []).append(value)
        if len(strata) > 1 and result.stratum is not None:
            columns.setdefault(f"accuracy/{result.stratum}", []).append(result.value)
    return {name: _points(sum(values) / len(values)) for name, values in sorted(columns.items())}


def warnings_about(cut_share: float, rules: Mapping[str, int]) -> list[str]:
    """What a reader of a score should know of the answers behind it."""
    told: list[str] = []
    if cut_share > _MANY_CUT:
        told.append(f"{cut_share:.0%} of the answers were cut by the length limit")
    silent = rules.get(NO_RULE, 0) / sum(rules.values())
    if silent > _MANY_SILENT:
        told.append(f"no answer could be read from {silent:.0%} of the texts")
    return told


def _points(share: float) -> float:
    """A share as points, kept inside [0, 100] against rounding in the last bit."""
    return min(100.0, max(0.0, 100 * share))
