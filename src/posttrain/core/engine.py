"""The contract between the harness and an engine worker: typed messages, one JSON object a line.

The worker is a process of its own without network and without gold answers. It reads requests on
standard input and writes replies on standard output, one terminal reply a request, any number of
`progress` replies before it. It ends when standard input closes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, Protocol

from pydantic import Field, TypeAdapter

from posttrain.core.frozen import Frozen
from posttrain.core.grading import LoadReport
from posttrain.core.scores import Output
from posttrain.core.specs import GenerationSettings

Progress = Callable[[int, int], None]
"""Called with (done, total) items."""


class Turn(Frozen):
    """One chat turn."""

    role: Literal["system", "user", "assistant"]
    content: str


class Prompt(Frozen):
    """What is asked of the model, before the base tokenizer's template is applied."""

    id: str
    turns: tuple[Turn, ...]


class PromptSettings(Frozen):
    """How turns become text: pinned once per run and written to the workspace's prompt/settings.json."""

    style: Literal["chat", "plain"]
    """Resolved: `auto` no longer occurs."""
    template: str
    answer_template: str
    system: str | None = None
    few_shot: tuple[Turn, ...] = ()
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    frozen_date: str | None = None
    """The date (YYYY-MM-DD) that a template sees when it asks for today's."""


class PinnedPrompt(Frozen):
    """The workspace's prompt/settings.json: all that is needed to write prompts as the grader does."""

    prompt: PromptSettings
    generation: GenerationSettings
    stop_token_ids: tuple[int, ...]


class NumericPlan(Frozen):
    """Everything that decides which floating-point numbers come out. Same plan, same texts."""

    engine: Literal["transformers", "vllm", "scripted"]
    device: str = "cpu"
    dtype: Literal["float32", "bfloat16", "float16"] = "bfloat16"
    attention: str = "sdpa"
    threads: int = Field(default=1, ge=1)
    lanes: int = Field(default=1, ge=1)
    """Batches at a time, each with an equal share of the threads."""
    rows: int = Field(default=32, ge=1)
    """Rows per batch."""
    order: Literal["length", "arrival"] = "length"
    memory_share: float = Field(default=0.25, gt=0.0, le=1.0)
    """Share of the device's total memory that grading may use."""
    seed: int = 0
    """Base of the per-item generator seeds where sampling is on."""


class BaseFacts(Frozen):
    """What a worker reports about the base model when it opens."""

    has_chat_template: bool
    stop_token_ids: tuple[int, ...]
    """Tokenizer's eos, generation config's eos and the template's end of turn together."""
    max_length: int | None = None
    """Context length of the base in tokens."""
    parameters: int | None = None
    versions: dict[str, str] = Field(default_factory=dict)
    """Libraries that decide the numbers."""


class OpenBase(Frozen):
    """First request of every worker: which base and under which numeric plan."""

    op: Literal["open"] = "open"
    base: str
    """Folder of the base model."""
    numeric: NumericPlan


class LoadSubmission(Frozen):
    """Take tensors from a folder into the base's own model; `folder` None means the base itself."""

    op: Literal["load"] = "load"
    folder: str | None


class Generate(Frozen):
    """Write an answer to every prompt, in the order given."""

    op: Literal["generate"] = "generate"
    prompts: tuple[Prompt, ...]
    prompt: PromptSettings
    generation: GenerationSettings


class Render(Frozen):
    """Apply the template without generating."""

    op: Literal["render"] = "render"
    prompts: tuple[Prompt, ...]
    prompt: PromptSettings


class Sleep(Frozen):
    """Give back the memory of weights and caches; the next load wakes the engine."""

    op: Literal["sleep"] = "sleep"


class Opened(Frozen):
    event: Literal["opened"] = "opened"
    facts: BaseFacts


class Loaded(Frozen):
    event: Literal["loaded"] = "loaded"
    report: LoadReport


class Generated(Frozen):
    """Outputs in the order of the prompts; with `samples`, all of the first prompt before the second's."""

    event: Literal["generated"] = "generated"
    outputs: tuple[Output, ...]
    generation_s: float = Field(ge=0.0)
    warnings: tuple[str, ...] = ()


class RenderedPrompt(Frozen):
    text: str
    token_ids: tuple[int, ...]


class RenderReply(Frozen):
    event: Literal["rendered"] = "rendered"
    prompts: tuple[RenderedPrompt, ...]


class Slept(Frozen):
    event: Literal["slept"] = "slept"


class ProgressReply(Frozen):
    event: Literal["progress"] = "progress"
    done: int
    total: int


class Failed(Frozen):
    """The request could not be served. `unloadable` and `rejected` blame the submission, the rest the lab."""

    event: Literal["failed"] = "failed"
    kind: Literal["unloadable", "rejected", "busy", "error"]
    error: str
    hint: str = ""


Request = Annotated[OpenBase | LoadSubmission | Generate | Render | Sleep, Field(discriminator="op")]
Reply = Annotated[
    Opened | Loaded | Generated | RenderReply | Slept | ProgressReply | Failed, Field(discriminator="event")
]
REQUEST: TypeAdapter[Request] = TypeAdapter(Request)
REPLY: TypeAdapter[Reply] = TypeAdapter(Reply)


class Engine(Protocol):
    """What an engine implements inside the worker process; errors are those of core.errors."""

    def open(self, base: str, numeric: NumericPlan) -> BaseFacts:
        """Read the base; called once, first."""
        ...

    def load(self, folder: str | None) -> LoadReport:
        """Make the next generations use this checkpoint. Raises Unloadable or Rejected."""
        ...

    def render(self, prompts: Sequence[Prompt], prompt: PromptSettings) -> list[RenderedPrompt]:
        """Apply the pinned prompt."""
        ...

    def generate(
        self,
        prompts: Sequence[Prompt],
        *,
        prompt: PromptSettings,
        generation: GenerationSettings,
        progress: Progress,
    ) -> list[Output]:
        """Answers in the order of the prompts, `generation.samples` of each one after the other."""
        ...

    def sleep(self) -> None:
        """Give back the memory of weights and caches until the next `load`, which is then the way to wake."""
        ...

    @property
    def warnings(self) -> Sequence[str]:
        """What a reader of the last generation's score should know."""
        ...
