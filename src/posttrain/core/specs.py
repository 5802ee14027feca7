"""What a task folder and an agent folder declare. A folder is the plugin; its name is its id."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from posttrain.core.frozen import Frozen
from posttrain.core.scores import Metric

MOST_TOKENS = 1 << 20
"""More than any context or vocabulary has; engines count in 32 bits."""


class SplitRule(Frozen):
    """Where the items of one split come from and how many are taken."""

    source: str = Field(alias="from", default="train")
    """The file that `data.py` wrote, without `.jsonl`."""
    size: int | None = Field(default=None, gt=0)
    """All rows if not given."""
    share: float | None = Field(default=None, gt=0.0, lt=1.0)
    """Instead of a size: a share of the source's rows."""


class OpenSplits(Frozen):
    """Other sources under the protocol `open`, for tasks whose two protocols use different rows."""

    train: SplitRule | None = SplitRule()
    test: SplitRule | None = None


class Splits(Frozen):
    """The split rules of a task. What `val` and `test` take from a file is missing from the visible split."""

    train: SplitRule | None = SplitRule()
    """The visible split; null where the agent gets no rows."""
    val: SplitRule | None = None
    test: SplitRule | None = None
    open: OpenSplits | None = None
    """None: the same test rows, and everything else of the train file visible."""


class PromptSpec(Frozen):
    """How a row becomes a prompt, before the base model's own chat template is applied."""

    style: Literal["auto", "chat", "plain"] = "auto"
    """auto: chat when the base's tokenizer has a template, else plain."""
    template: str = "{question}"
    """The user turn; `{field}` stands for a field of the row."""
    plain_template: str | None = None
    """Instead of `template` where the style is plain, which writes `Question:` and `Answer:` by itself."""
    answer_template: str = "{answer}"
    """How a gold row reads as the assistant's turn, for training and for exemplars."""
    system: str | None = None
    """No system turn unless a task states one."""
    few_shot: str | None = None
    """A YAML file in the task folder: a list of {question, answer} turns put before the row."""
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Switches of the base's template, such as thinking."""


class GenerationSettings(Frozen):
    """Decoding, the same for base and submissions."""

    max_new_tokens: int = Field(default=512, gt=0, le=MOST_TOKENS)
    temperature: float = Field(default=0.0, ge=0.0, allow_inf_nan=False)
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    top_k: int = Field(default=0, ge=0, le=MOST_TOKENS)
    """0: no limit."""
    repetition_penalty: float = Field(default=1.0, gt=0.0, allow_inf_nan=False)
    stop: tuple[str, ...] = ()
    """Texts that end an answer, besides the base's own end tokens; not part of the answer."""
    samples: int = Field(default=1, ge=1)
    """Answers per item; more than 1 makes the score mean@k."""
    per_model: bool = False
    """Leave it to models.yaml, which knows how each base model generates."""


class TaskSpec(Frozen):
    """A resolved task: benchmark.yaml after the variant was merged in."""

    id: str
    """`gsm8k` or, with a variant, `gsm8k:4shot`."""
    folder: Path
    title: str
    evaluator: str
    """A stock evaluator (numeric, choice, math, code), `own` for the folder's eval.py, or an adapter."""
    evaluator_settings: dict[str, Any] = Field(default_factory=dict)
    metric: Metric = Metric()
    splits: Splits = Splits()
    prompt: PromptSpec = PromptSpec()
    generation: GenerationSettings = GenerationSettings()
    stratify: str | None = None
    """A field of the rows; the score is the macro average over its values if `macro`."""
    macro: bool = False
    procedural: bool = False
    """Rows carry their own `bucket` (space partition) instead of being split by us."""
    expose: tuple[str, ...] = ()
    """Files of the folder that the agent may see besides description.md."""
    dataset: str | None = None
    """Hub data set the rows come from, named when data is missing."""
    format_control: str | None = None
    """A variant under which the untouched base shows what a prompt alone gives."""
    variant: str | None = None
    rows_of: str | None = None
    """The task whose rows these are, where they are another's."""
    needs: tuple[str, ...] = ()
    """Extras that grading this task needs, e.g. `math`."""

    @property
    def name(self) -> str:
        """The id without its variant: the name of the folder and of its data."""
        return self.id.split(":", 1)[0]

    @property
    def data_name(self) -> str:
        """The task under whose name its rows are kept and looked for."""
        return self.rows_of or self.name


class AgentSpec(Frozen):
    """A resolved agent: config.yaml after the profile was merged in."""

    id: str
    """`example_agent` or, with a profile, `example_agent:fast`."""
    folder: Path
    name: str
    description: str = ""
    start: str = "start.sh"
    env_vars: dict[str, str] = Field(default_factory=dict)
    """Defaults of the agent; the contract variables win over them."""
    pass_env: tuple[str, ...] = ()
    """Host variables that it may see."""
    keys: tuple[str, ...] = ()
    """Of these at least one must be set where it is started."""
    programs: dict[str, str] = Field(default_factory=dict)
    """Variables and the programs that they name, or that the operator's PATH has where one is not set."""
    needs: tuple[str, ...] = ()
    """Extras of posttrain that must be installed where it is started."""
    network: Literal["grader", "host"] = "host"
    """grader: nothing but the grading server. host: everything, and every report says so."""
    bind: tuple[str, ...] = ()
    """Extra paths to show read-only."""
    tool_envs: tuple[str, ...] = ()
    control: bool = False
    """A control arm, not a contestant."""
    profile: str | None = None
