"""The vocabulary of iteration reports: labels in both languages, train types, failure types."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

Lang = Literal["zh", "en"]


class TrainType(StrEnum):
    """What the code of an iteration does; `unknown` where the source doesn't tell."""

    GRPO = "GRPO"
    SFT = "SFT"
    PPO = "PPO"
    COPY_MODEL = "copy_model"
    PLACEHOLDER = "placeholder"
    UNKNOWN = "unknown"


class FailureType(StrEnum):
    """Why an iteration failed; a success carries `unknown`."""

    CODE_ERROR_RUNTIME = "code_error_runtime"
    ROLLOUT_LOGIC_WRONG = "rollout_logic_wrong"
    TIMEOUT_NO_SUBMISSION = "timeout_no_submission"
    COPY_MODEL_FALLBACK = "copy_model_fallback"
    TRAINING_DIVERGED = "training_diverged"
    UNKNOWN = "unknown"


class Field(StrEnum):
    """The nine bullets of a section, in their order."""

    STATUS = "status"
    SCORE = "score"
    TRAIN_TYPE = "train_type"
    CONFIG = "config"
    WHAT = "what"
    WHY = "why"
    PROGRESS = "progress"
    KEY_CODE = "key_code"
    CONTEXT = "context"


FIELDS = tuple(Field)


@dataclass(frozen=True)
class Labels:
    """One language of a summary."""

    title: str
    fields: dict[Field, str]
    success: str
    failure: str
    duration: str
    same_as: str
    """With `{}` for the number of the iteration."""


LABELS: dict[Lang, Labels] = {
    "zh": Labels(
        title="# 运行总结",
        fields=dict(
            zip(
                FIELDS,
                (
                    *("状态", "Score", "训练类型", "关键配置", "做了什么", "为什么"),
                    *("问题/进步", "关键代码", "代码片段（上下文）"),
                ),
                strict=True,
            )
        ),
        success="成功",
        failure="失败",
        duration="耗时",
        same_as="与 Iteration {} 相同（无变更）",
    ),
    "en": Labels(
        title="# Run summary",
        fields=dict(
            zip(
                FIELDS,
                (
                    *("Status", "Score", "Train type", "Key config", "What was done", "Why"),
                    *("Problem/Progress", "Key code", "Code context"),
                ),
                strict=True,
            )
        ),
        success="success",
        failure="failure",
        duration="duration",
        same_as="same as Iteration {} (no change)",
    ),
}

ABSENT = "N/A"
"""What stands where nothing was measured: a score that does not exist is not 0."""

SHORT_NAMES = {
    "per_device_train_batch_size": "batch",
    "gradient_accumulation_steps": "grad_accum",
    "learning_rate": "lr",
    "num_train_epochs": "epochs",
}
"""Names of hyper-parameters in a summary; others are as they are in the script."""
