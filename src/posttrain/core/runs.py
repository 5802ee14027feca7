"""A run is three frozen models: asked (RunRequest), resolved (RunPlan), happened (RunRecord)."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal

from pydantic import Field

from posttrain.core.engine import NumericPlan, PromptSettings
from posttrain.core.frozen import Frozen
from posttrain.core.grading import Split
from posttrain.core.scores import Improvement, Score
from posttrain.core.specs import GenerationSettings

Mode = Literal["holdout", "open"]
Isolation = Literal["bwrap", "none"]
Network = Literal["grader", "host"]
DEFAULT_PORT = 5000
"""Of the grading server."""


class Status(StrEnum):
    """How a run ended; the first that fits, in this order of precedence."""

    ERROR = "error"
    INTERRUPTED = "interrupted"
    NO_SUBMISSION = "no_submission"
    AGENT_FAILED = "agent_failed"
    COMPLETED = "completed"
    RUNNING = "running"


class RunRequest(Frozen):
    """What was asked for, as the options of `posttrain run` say it."""

    agent: str
    task: str
    model: str
    timeout_s: float = Field(default=12 * 3600.0, gt=0)
    port: int = Field(default=DEFAULT_PORT, ge=0, le=65535)
    port_given: bool = False
    """A port named on purpose must be free; the default one gives way to another."""
    protocol: Mode = "holdout"
    engine: Literal["auto", "transformers", "vllm", "scripted"] = "auto"
    sandbox: Literal["auto", "bwrap", "none"] = "auto"
    network: Network | None = None
    """None: what the agent's config says."""
    pass_env: tuple[str, ...] = ()
    seed: int = 0
    limit: int | None = Field(default=None, gt=0)
    max_submissions: int = Field(default=50, gt=0)
    grading_timeout_s: float = Field(default=7200.0, gt=0)
    grading_memory: float = Field(default=0.25, gt=0.0, le=1.0)
    split_salt: Literal["public", "private"] = "public"


class TaskPlan(Frozen):
    """The task as this run uses it."""

    id: str
    digest: str
    """BLAKE3 over the task folder's files and the merged spec."""
    val: tuple[str, ...]
    """Item ids in order."""
    test: tuple[str, ...]
    visible: int
    """Rows that the agent sees."""


class ModelPlan(Frozen):
    """The base model as this run uses it."""

    id: str
    folder: str
    """Relative to the lab home."""
    digest: str
    """BLAKE3 over names and bytes of all its files."""
    source: str


class RunPlan(Frozen):
    """Everything that decides the result, resolved before anything of the run has happened."""

    run_id: str
    request: RunRequest
    version: str
    """Of posttrain."""
    libraries: dict[str, str]
    task: TaskPlan
    model: ModelPlan
    siblings: tuple[str, ...] = ()
    """Names of the other fine-tunes of the base that submissions are held against."""
    agent_digest: str
    prompt: PromptSettings
    generation: GenerationSettings
    stop_token_ids: tuple[int, ...]
    numeric: NumericPlan
    isolation: Isolation
    kill: Literal["namespace", "best-effort"]
    network: Network
    rules_hash: str
    seed: int
    host: str
    gpus: tuple[str, ...]
    env_names: tuple[str, ...]
    """Names of the variables passed to the agent, never their values."""
    port: int
    created: str

    def fingerprint(self) -> dict[str, Any]:
        """The part that must be equal for a resume: all but run id, times, port and what is only told."""
        left_out = {"run_id", "created", "port"}
        return self.model_dump(mode="json", exclude=left_out)


class Result(Frozen):
    """The answer to the one question of a run; None where nothing was graded."""

    split: Split
    submission_id: int
    score: Score
    baseline: Score
    improvement: Improvement
    val_score: float | None = None
    val_baseline: float | None = None
    overfit: Improvement | None = None
    """(val - test of the selected) - (val - test of the base); positive: the validation score flattered."""
    selection: Literal["final", "best_val", "last", "best_test"]
    flags: tuple[str, ...] = ()


class FormatControl(Frozen):
    """What a better prompt alone gives the untouched base; measured before the agent's clock starts."""

    task: str
    """The variant whose prompt it is, such as `gsm8k:4shot`."""
    split: Split
    """The split that is reported."""
    score: Score
    improvement: Improvement
    """Over the baseline on the same items."""


class RunReport(Frozen):
    """What a machine found when it held the summary of a run against the facts."""

    by: Literal["agent", "harness"]
    """Who wrote it: the agent or, where it wrote none, the harness from facts."""
    iterations: int
    findings: int
    rules: dict[str, int] = Field(default_factory=dict)
    """Findings by rule: 1 to 10, and `facts`."""
    not_checkable: int = 0
    """Claims that nothing confirms or refutes."""


class RunRecord(Frozen):
    """What happened; written last. An interrupted run, or one that the lab failed, is not closed by it."""

    run_id: str
    plan_digest: str
    status: Status
    started: str
    ended: str
    duration_s: float
    """Wall-clock seconds of the agent's budget that were used."""
    agent_exit: int | None = None
    stopped_at_deadline: bool = False
    grading_wait_s: float = 0.0
    harness_fault_s: float = 0.0
    verdicts: dict[str, int] = Field(default_factory=dict)
    result: Result | None = None
    val_baseline: Score | None = None
    test_baseline: Score | None = None
    format_control: FormatControl | None = None
    """None: not measured, because the task names no other prompt to compare with."""
    marks: tuple[str, ...] = ()
    """`isolation: none`, `limited`, `open`, `infrastructure faults > 2 %` and the like."""
    reason: str | None = None
    """What ended the run early, in a sentence."""
    report: RunReport | None = None
    """None: not checked, because the run had no time for its agent."""
    resumed: int = 0
    ledger_head: str
    ledger_rows: int
    self_check: dict[str, Any] = Field(default_factory=dict)

    @property
    def closed(self) -> bool:
        """Whether a resume has nothing left to do."""
        return self.status not in (Status.INTERRUPTED, Status.ERROR)
