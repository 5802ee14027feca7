"""A section from a few words and the facts: what can be measured or read is not asked of anybody."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import PurePosixPath
from typing import Literal

from pydantic import Field

from posttrain.core.errors import UsageError
from posttrain.core.frozen import Frozen
from posttrain.core.grading import Verdict
from posttrain.reports.summaries import told
from posttrain.reports.summaries.facts import Facts, Handed, best_of, process_metrics
from posttrain.reports.summaries.hyper import Reading, read_scripts
from posttrain.reports.summaries.quoting import quote
from posttrain.reports.summaries.rules import is_copy
from posttrain.reports.summaries.script import Script, with_imports
from posttrain.reports.summaries.text import Document
from posttrain.reports.summaries.timing import timeline
from posttrain.reports.summaries.words import FailureType, Lang, TrainType
from posttrain.reports.summaries.words import Field as Bullet
from posttrain.reports.summary import TIME_FORMAT, Iteration

_ERROR_LINE = re.compile(r"^\s*((?:[\w.]+\.)?[A-Z]\w*(?:Error|Exception|Interrupt)\b.*)$", re.MULTILINE)
_DIVERGED = re.compile(r"\bnan\b|\binf\b|diverg|发散|爆炸", re.IGNORECASE)
_NO_SIGNAL = re.compile(
    r"zero.variance|reward_std\W+0(?:\.0+)?\b|empty (?:rollout|completion)|方差为 ?0", re.IGNORECASE
)
_TOLD = (
    *("lr", "batch", "grad_accum", "epochs", "max_steps", "max_length", "max_completion_length"),
    *("max_prompt_length", "num_generations", "beta", "temperature", "warmup_steps", "warmup_ratio"),
    *("weight_decay", "lr_scheduler_type", "max_grad_norm", "r", "lora_alpha", "lora_dropout"),
)
_NEWS = {"zh": ("新增证据", "无新增"), "en": ("new evidence", "nothing new")}
_CAUSE = {"zh": "根因", "en": "cause"}


class Draft(Frozen):
    """What whoever ran a round tells of it. All else is taken from the facts, or given to overrule them."""

    what: str = Field(min_length=1)
    why: str = Field(min_length=1)
    progress: str = ""
    news: str = ""
    """What is new, where the cause of the last failure came again."""
    cause: str = ""
    """Of a failure: the error, as it stands in a log."""
    exit_code: int = 0
    status: Literal["success", "failure"] | None = None
    failure_type: FailureType | None = None
    duration_s: int | None = Field(default=None, ge=0)
    time: str | None = None
    submissions: tuple[int, ...] = ()
    """Those of this round; without it all since the last."""
    train_type: TrainType | None = None
    config: dict[str, str] | None = None
    script: str | None = None
    """The training script, such as `code/train.py`."""
    key_code: str | None = None
    """Lines of it (`12-16`), or their text."""
    context: str | None = None
    """Lines of it (`34-56`), their text, or `same`."""


@dataclass(frozen=True)
class Round:
    """The facts of one round."""

    number: int
    begin: float | None
    end: float
    own: Sequence[Handed]
    scripts: Sequence[Script]


def next_round(
    draft: Draft, document: Document, facts: Facts, *, now: float, last_written: float | None = None
) -> Round:
    """The round since the last section; `last_written` is when that was appended, to the second."""
    numbers = [section.number for section in document.sections if section.number]
    begin, since = facts.start, None
    windows = timeline(document, facts)
    last = windows.of(document.sections[-1]) if document.sections else None
    if last is not None:
        exact = last_written is not None and last.told <= last_written <= last.end
        begin = since = last_written if exact else last.told
    number = max(numbers, default=0) + 1
    if draft.submissions:
        unknown = set(draft.submissions) - {entry.number for entry in facts.handed}
        if unknown:
            raise UsageError(f"--submission: there is no submission {min(unknown)} in scores.json")
        own = [entry for entry in facts.handed if entry.number in draft.submissions]
    else:
        # the first round holds all there is: the start in run_meta.json is a whole second, rounded
        own = [entry for entry in facts.handed if since is None or entry.at >= since]
    return Round(number, begin, now, own, facts.scripts)


def compose(draft: Draft, this: Round, document: Document, facts: Facts, *, lang: Lang) -> Iteration:
    """The iteration as it is to be appended. UsageError for what cannot be found."""
    script = _script(draft, this.scripts)
    reading = read_scripts(with_imports([script], this.scripts)) if script else Reading()
    best = best_of(facts.handed_by(this.end))
    top = best_of(this.own)
    kind = draft.train_type or _train_type(reading, this.own, script)
    failure = draft.failure_type or _failure(draft, this, facts)
    failed = failure is not FailureType.UNKNOWN or draft.exit_code != 0
    status = draft.status or ("failure" if failed else "success")
    idle = kind in (TrainType.COPY_MODEL, TrainType.PLACEHOLDER)
    key, context = quote(draft.key_code, draft.context, document, script, idle=idle)
    return Iteration(
        number=this.number,
        time=draft.time or datetime.fromtimestamp(this.end).strftime(TIME_FORMAT),  # noqa: DTZ006 - local
        duration_s=_duration(draft, this),
        status=status,
        exit_code=draft.exit_code,
        score=None if top is None else top.score,
        improvement=None if top is None else top.improvement,
        best=None if best is None else best.score,
        best_iteration=None if best is None else _reached_in(best, this, document, facts),
        train_type=kind,
        config=_config(reading, kind) if draft.config is None else draft.config,
        what=draft.what,
        why=draft.why,
        progress=_progress(
            draft, this, document, facts, failure=failure if status == "failure" else None, lang=lang
        ),
        failure_type=failure,
        key_code=key,
        context=context.text,
        context_where=context.where,
        same_as=context.same_as,
    )


def _duration(draft: Draft, this: Round) -> int:
    if draft.duration_s is not None:
        return draft.duration_s
    return 0 if this.begin is None else max(0, int(this.end - this.begin))


def _reached_in(best: Handed, this: Round, document: Document, facts: Facts) -> int:
    """The iteration of the best submission: this one, or the one that an earlier section names."""
    if any(entry.score == best.score for entry in this.own) and not any(
        entry.score == best.score and entry.number < this.own[0].number for entry in facts.handed
    ):
        return this.number
    for section in reversed(document.sections):
        claimed = told.scores(section)
        if claimed.best is not None and claimed.best.matches(best.score or 0.0) and claimed.best_iteration:
            return claimed.best_iteration
    windows = timeline(document, facts)
    for section in document.sections:
        window = windows.of(section)
        if window is not None and section.number and best in window.candidates:
            return section.number
    return this.number


# --- what the code says


def _script(draft: Draft, scripts: Sequence[Script]) -> Script | None:
    if draft.script is not None:
        wanted = PurePosixPath(draft.script)
        for script in scripts:
            if PurePosixPath(script.name) == wanted or script.name.endswith("/" + draft.script.lstrip("./")):
                return script
        there = ", ".join(script.name for script in scripts[:10]) or "nothing"
        raise UsageError(f"--script: {draft.script} is no script below code/; there is {there}")
    usual = [script for script in scripts if PurePosixPath(script.name).name == "train.py"]
    training = [s for s in scripts if read_scripts([s]).types - {TrainType.COPY_MODEL, TrainType.PLACEHOLDER}]
    latest = sorted(training, key=lambda script: script.changed or 0.0)
    return next(iter(usual), latest[-1] if latest else None)


def _train_type(reading: Reading, own: Sequence[Handed], script: Script | None) -> TrainType:
    if own and all(is_copy(entry) for entry in own if entry.status is Verdict.GRADED):
        graded = any(entry.status is Verdict.GRADED for entry in own)
        if graded:
            return TrainType.COPY_MODEL
    if script is not None and len(reading.types) == 1 and reading.parsed:
        return next(iter(reading.types))
    return TrainType.UNKNOWN


def _config(reading: Reading, kind: TrainType) -> dict[str, str]:
    if kind in (TrainType.COPY_MODEL, TrainType.PLACEHOLDER):
        return {}
    known = reading.config()
    return {name: _value_text(known[name]) for name in _TOLD if known.get(name) is not None}


def _value_text(value: object) -> str:
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return re.sub(r"e([-+])0*(\d)", lambda match: f"e{match[1].replace('+', '')}{match[2]}", text)


# --- what came of it


def _failure(draft: Draft, this: Round, facts: Facts) -> FailureType:
    """The failure type by fact; `unknown` for a success."""
    graded = [entry for entry in this.own if entry.status is Verdict.GRADED]
    words = f"{draft.cause} {draft.progress}"
    if draft.exit_code != 0:
        if _DIVERGED.search(words):
            return FailureType.TRAINING_DIVERGED
        return FailureType.ROLLOUT_LOGIC_WRONG if _NO_SIGNAL.search(words) else FailureType.CODE_ERROR_RUNTIME
    if graded:
        copies = all(is_copy(entry) for entry in graded)
        return FailureType.COPY_MODEL_FALLBACK if copies else FailureType.UNKNOWN
    if any(entry.status in (Verdict.REJECTED, Verdict.UNLOADABLE) for entry in this.own):
        return FailureType.CODE_ERROR_RUNTIME
    over = facts.end if facts.end is not None else this.end
    if facts.start is not None and facts.timeout_s is not None and over >= facts.start + facts.timeout_s - 1:
        return FailureType.TIMEOUT_NO_SUBMISSION
    return FailureType.UNKNOWN


def _progress(
    draft: Draft,
    this: Round,
    document: Document,
    facts: Facts,
    *,
    failure: FailureType | None,
    lang: Lang,
) -> str:
    parts = [draft.progress.strip().rstrip(".。;；")] if draft.progress.strip() else []
    parts.append(", ".join(_metrics(this, facts)))
    if failure is not None:
        cause = draft.cause.strip() or _found_cause(this, facts, failure)
        parts.append(f"failure_type={failure.value}")
        if cause:
            parts.append(f"{_CAUSE[lang]}: `{' '.join(cause.replace('`', chr(39)).split())[:300]}`")
        parts += _news(draft, document, failure, lang)
    elif draft.news:
        parts.append(f"{_NEWS[lang][0]}: {draft.news}")
    return "; ".join(part for part in parts if part)


def _metrics(this: Round, facts: Facts) -> list[str]:
    handed = facts.handed_by(this.end)
    made = process_metrics(handed, start=facts.start, end=this.end, timeout_s=facts.timeout_s)
    counted = [entry for entry in handed if entry.status is not Verdict.ERROR]
    valid = sum((entry.score or 0.0) > 0.0 for entry in counted)
    found: list[str] = []
    rate = made["valid_submission_rate"]
    if rate is None:
        found.append("valid_submission_rate=null")
    if isinstance(rate, float):
        found.append(f"valid_submission_rate={rate:.2f} ({valid}/{len(counted)})")
    for name, unit in (("first_valid_idx", ""), ("time_to_first_improvement", "s")):
        if made[name] is not None:
            found.append(f"{name}={made[name]}{unit}")
    used = made["time_used_ratio"]
    if isinstance(used, float):
        found.append(f"time_used_ratio={used:.2f}")
    return found


def _found_cause(this: Round, facts: Facts, failure: FailureType) -> str:
    """The error of this round's last ungraded submission, else the last error in a log."""
    if failure is FailureType.COPY_MODEL_FALLBACK:
        return "scores.json: improvement=0.0"
    if failure is FailureType.TIMEOUT_NO_SUBMISSION:
        return "scores.json: []" if not facts.handed else "run_meta.json: end_time"
    refused = [entry.error for entry in this.own if entry.status is not Verdict.GRADED and entry.error]
    if refused:
        return refused[-1]
    for log in facts.logs:
        errors = _ERROR_LINE.findall(log.text)
        if errors:
            return str(errors[-1])
    return ""


def _news(draft: Draft, document: Document, failure: FailureType, lang: Lang) -> list[str]:
    before = document.sections[-1] if document.sections else None
    if draft.news:
        return [f"{_NEWS[lang][0]}: {draft.news}"]
    repeated = before is not None and failure.value in told.failure_types(before.text(Bullet.PROGRESS))
    return [_NEWS[lang][1]] if repeated else []
