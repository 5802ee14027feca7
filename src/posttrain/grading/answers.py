"""What the grading server says: a superset of the ancestor's answers, the rules in every one of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from posttrain.checkpoints.intake import printable
from posttrain.core.errors import InfrastructureError, PosttrainError
from posttrain.core.grading import Grade, Verdict
from posttrain.grading.book import Standing
from posttrain.grading.exports import score_entry
from posttrain.grading.grader import Grader
from posttrain.infra.digests import digest_bytes

Json = dict[str, Any]

STATUS_CODES = {Verdict.GRADED: 200, Verdict.REJECTED: 422, Verdict.UNLOADABLE: 422, Verdict.ERROR: 503}
OUT_OF_SPACE = 507


@dataclass(frozen=True)
class RulesNote:
    """RULES.md and the sentence of it that goes with every answer."""

    text: str
    sentence: str

    @property
    def hash(self) -> str:
        return digest_bytes(self.text.encode("utf-8"))

    def brief(self) -> Json:
        return {"hash": self.hash, "sentence": self.sentence}


def entry(grade: Grade) -> Json:
    """One verdict: the ancestor's entry with what is needed to read it fairly."""
    score, gain = grade.score, grade.improvement
    told: Json = score_entry(grade) | {
        "split": grade.split,
        "score": grade.value,
        "n": None if score is None else score.n,
        "ci95": None if score is None else list(score.ci95),
        "improvement": None if gain is None else round(gain.value, 6),
        "improvement_ci95": None if gain is None or gain.ci95 is None else list(gain.ci95),
        "secondary": {} if score is None else score.secondary,
        "cut_share": None if score is None else score.cut_share,
        "final": grade.final,
        "note": grade.note,
        "same_as": grade.same_as,
        "digest": grade.digest,
        "warnings": list(grade.warnings),
        "flags": list(grade.flags),
        "repairs": [] if grade.load is None else list(grade.load.repairs),
        "load_notes": [] if grade.load is None else list(grade.load.notes),
    }
    if grade.hint:
        told["hint"] = grade.hint
    return told


def verdict(grade: Grade, grader: Grader) -> Json:
    """The answer to the client that handed it in: its entry, the best so far, and the time left."""
    best = grader.best
    return entry(grade) | {
        "best": None if best is None else entry(best),
        "total_submissions": grader.total,
        "remaining_s": round(grader.budget.remaining()),
    }


def standing(where: Standing, grader: Grader) -> Json:
    """Where a submission is, or its verdict."""
    if where.grade is not None:
        return verdict(where.grade, grader)
    return {
        "submission_id": where.submission_id,
        "timestamp": where.timestamp,
        "model_path": where.model_path,
        "status": where.stage.value,
        "position": where.position,
        "score": None,
        "total_submissions": grader.total,
        "remaining_s": round(grader.budget.remaining()),
    }


def fault(error: PosttrainError) -> Json:
    """What a client is told about an error of the lab."""
    hint = error.hint if isinstance(error, InfrastructureError) else InfrastructureError.hint
    return {"error": printable(str(error)), "hint": hint}


def status_code(where: Standing) -> int:
    """The HTTP status that goes with a submission's standing."""
    if where.grade is None:
        return 202
    return OUT_OF_SPACE if where.out_of_space else STATUS_CODES[where.grade.status]
