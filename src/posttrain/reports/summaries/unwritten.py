"""A summary from facts alone, for an agent that wrote none."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath

from posttrain.reports.summaries.compose import Draft, Round, compose
from posttrain.reports.summaries.facts import Facts, Handed, best_of
from posttrain.reports.summaries.text import Document, parse
from posttrain.reports.summaries.words import FailureType, Lang
from posttrain.reports.summary import Iteration, section

_NOTHING = {"zh": "没有任何提交", "en": "nothing was handed in"}
_UNTOLD = {
    "zh": "agent 没有写总结；本节由 harness 根据 scores.json 与 run.log 生成，理由未知",
    "en": "the agent wrote no summary; the harness made this from scores.json and run.log, reasons unknown",
}


def from_facts(facts: Facts, *, exit_code: int | None, lang: Lang = "zh") -> list[Iteration]:
    """One iteration a submission, or a single one where nothing was handed in."""
    if not facts.handed:
        return [_without_submission(facts, exit_code, lang)]
    codes = {moment.number: moment.scripts for moment in facts.moments}
    made: list[Iteration] = []
    begin, numbers = facts.start, {entry.number: place for place, entry in enumerate(facts.handed, start=1)}
    for entry in facts.handed:
        end = entry.at + entry.waited
        this = Round(len(made) + 1, begin, end, [entry], codes.get(entry.number, facts.scripts))
        until = Facts(
            handed=facts.handed_by(entry.at),
            start=facts.start,
            timeout_s=facts.timeout_s,
            end=facts.end,
            logs=facts.logs,
        )
        draft = Draft(what=_what(entry, lang), why=_UNTOLD[lang])
        iteration = compose(draft, this, _document(made, lang), until, lang=lang)
        best = best_of(until.handed)
        made.append(
            iteration.model_copy(update={"best_iteration": None if best is None else numbers[best.number]})
        )
        begin = end
    return made


def _document(made: Sequence[Iteration], lang: Lang) -> Document:
    """What is made so far, as the next one sees it."""
    return parse("\n".join(section(iteration, lang=lang) for iteration in made).encode("utf-8", "replace"))


def _without_submission(facts: Facts, exit_code: int | None, lang: Lang) -> Iteration:
    draft = Draft(
        what=_NOTHING[lang],
        why=_UNTOLD[lang],
        exit_code=exit_code or 0,
        status="failure",
        failure_type=FailureType.CODE_ERROR_RUNTIME if exit_code else FailureType.TIMEOUT_NO_SUBMISSION,
    )
    this = Round(1, facts.start, facts.end or facts.now or 0.0, [], facts.scripts)
    return compose(draft, this, Document(), facts, lang=lang)


def _what(entry: Handed, lang: Lang) -> str:
    name = PurePosixPath(entry.path).name or entry.path
    note = f": {entry.note}" if entry.note else ""
    return f"{'提交' if lang == 'zh' else 'handed in'} {name} (submission {entry.number}){note}"
