"""Iterations as sections of reports/summary.md: facts of the journal, texts of the driver model."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from posttrain.infra.files import read_jsonl
from posttrain.reports.summaries.words import SHORT_NAMES, FailureType, Lang, TrainType
from posttrain.reports.summary import ROWS, TIME_FORMAT, Iteration, append_iteration
from posttrain.research.digest import clip
from posttrain.research.nodes import Fault, Node

_FAULTS: dict[Fault, FailureType] = {
    "crash": FailureType.CODE_ERROR_RUNTIME,
    "refused": FailureType.CODE_ERROR_RUNTIME,
    "no_checkpoint": FailureType.CODE_ERROR_RUNTIME,
    "diverged": FailureType.TRAINING_DIVERGED,
    "timeout": FailureType.TIMEOUT_NO_SUBMISSION,
    "time": FailureType.TIMEOUT_NO_SUBMISSION,
    "ungraded": FailureType.TIMEOUT_NO_SUBMISSION,
}
_KNOBS = re.compile(
    r"\b(learning_rate|(?:per_device_train_)?batch_size|gradient_accumulation_steps|(?:num_train_)?epochs|max_steps|"
    r"max_length|warmup|weight_decay|num_generations|max_completion_length)\s*=\s*([-+.\w]+)"
)
_KEY_LINES, _CONTEXT_LINES = 5, 30
_TRAINING_CALL = re.compile(r"fine_tune\(|Trainer\(|\.train\(|train_epoch\(")


def reported(folder: Path) -> int:
    """How many iterations the summary holds."""
    try:
        return max((int(row["iteration"]) for row in read_jsonl(folder / ROWS)), default=0)
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def append_reports(folder: Path, nodes: Sequence[Node], *, script: Path, lang: Lang) -> None:
    """Append every iteration that is missing. `script` is a pattern with {number}."""
    for node in nodes[reported(folder) :]:
        append_iteration(folder, _iteration(node, nodes[: node.number], script), lang=lang)


def _iteration(node: Node, nodes: Sequence[Node], script: Path) -> Iteration:
    best = max((each for each in nodes if each.grade), key=_gain, default=None)
    code = _code(Path(str(script).format(number=node.number)))
    key, context, where = _excerpt(code)
    grade, run = node.grade, node.training or node.dry_run
    failed = node.failure is not None
    code_number = run.exit_code if run is not None and run.exit_code is not None else int(failed)
    began, ended = datetime.fromisoformat(node.started), datetime.fromisoformat(node.ended)
    return Iteration(
        number=node.number,
        time=ended.astimezone().strftime(TIME_FORMAT),
        duration_s=max(0, round((ended - began).total_seconds())),
        status="failure" if failed else "success",
        exit_code=code_number or int(failed),
        score=None if grade is None else grade.score,
        improvement=None if grade is None else grade.improvement,
        best=best.grade.score if best is not None and best.grade is not None else None,
        best_iteration=None if best is None else best.number,
        train_type=_train_type(code),
        config=_config(code),
        what=clip(node.changes or node.hypothesis or "no usable answer of the driver model", 600),
        why=_why(node, nodes),
        progress=_progress(node, nodes),
        failure_type=_FAULTS.get(node.failure.fault, FailureType.UNKNOWN)
        if node.failure
        else FailureType.UNKNOWN,
        key_code=key,
        context=context,
        context_where=where,
    )


def _gain(node: Node) -> float:
    return node.grade.improvement if node.grade else float("-inf")


def _code(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""


def _train_type(code: str) -> TrainType:
    if not code:
        return TrainType.PLACEHOLDER
    if re.search(r"GRPO|train_epoch", code):
        return TrainType.GRPO
    if re.search(r"PPO|RLOO", code):
        return TrainType.PPO
    if re.search(r"fine_tune|SFT|\bSft\b|cross_entropy", code):
        return TrainType.SFT
    return TrainType.UNKNOWN


def _config(code: str) -> dict[str, str]:
    """Hyper-parameters as they stand in the script."""
    found = {}
    for name, value in _KNOBS.findall(code):
        found[SHORT_NAMES.get(name, name)] = value
    return found


def _excerpt(code: str) -> tuple[str, str, str]:
    """Lines around the call that trains: a few, more of them, and where these stand."""
    lines = code.split("\n")
    if not code.strip():
        return "", "", ""
    at = next((i for i, line in enumerate(lines) if _TRAINING_CALL.search(line)), 0)
    first = max(0, min(at - _CONTEXT_LINES // 2, len(lines) - _CONTEXT_LINES))
    last = min(len(lines), first + _CONTEXT_LINES)
    key = lines[max(0, at - 1) : at - 1 + _KEY_LINES] if at else lines[:_KEY_LINES]
    return "\n".join(key), "\n".join(lines[first:last]), f"train.py L{first + 1}-L{last}"


def _why(node: Node, nodes: Sequence[Node]) -> str:
    reason = str((node.idea or {}).get("reason") or node.hypothesis or "no proposal")
    if node.number == 1:
        return clip(reason, 500)
    last = nodes[node.number - 2]
    if last.grade is not None:
        numbers = f"score {last.grade.score:.1f}, improvement {last.grade.improvement:+.1f}"
        evidence = f"Iteration {last.number}, scores.json: {numbers}"
    else:
        evidence = f"Iteration {last.number}, agent.log: {last.failure.text if last.failure else 'no score'}"
    return f"{clip(' '.join(evidence.split()), 300)}. {clip(reason, 500)}"


def _progress(node: Node, nodes: Sequence[Node]) -> str:
    handed = [
        each for each in nodes if each.grade is not None or (each.failure and each.failure.fault == "refused")
    ]
    valid = [each for each in handed if each.grade is not None and each.grade.score > 0]
    told = []
    if handed:
        told.append(f"valid_submission_rate={len(valid) / len(handed):.2f}")
    if node.failure is not None:
        kind = _FAULTS.get(node.failure.fault, FailureType.UNKNOWN)
        told.append(f"failure_type={kind.value}: {clip(' '.join(node.failure.text.split()), 300)}")
    else:
        told.append(node.decision.reason)
    if node.opinion is not None:
        told.append(clip(" ".join(node.opinion.observation.split()), 300))
    return "; ".join(told) if told else "failure_type=unknown"
