"""models.yaml: how a model generates where a task leaves that to the model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from posttrain.core.errors import UsageError
from posttrain.core.specs import MOST_TOKENS, TaskSpec

_SHIPPED = Path(__file__).with_name("models.yaml")
_SHORTEST_PREFIX = 6
"""A shorter name governs only the model that has exactly this name."""
_GENERATION = ("temperature", "top_p", "top_k", "repetition_penalty", "max_new_tokens")
_UNUSED = ("max_seq_len", "batch_size", "gpu_memory_utilization", "dtype", "use_cot_postprocessor")
"""Fields of the ancestor's file that the numeric plan decides here."""


def _no_switch(value: Any) -> Any:
    """YAML reads `yes` and `on` as true, which would count as 1."""
    if isinstance(value, bool):
        raise ValueError("a number is expected")  # noqa: TRY004  (pydantic reads ValueErrors)
    return value


_Float = Annotated[float, BeforeValidator(_no_switch), Field(allow_inf_nan=False)]
_Int = Annotated[int, BeforeValidator(_no_switch), Field(le=MOST_TOKENS)]


class ModelSettings(BaseModel):
    """One entry. What it leaves out stays as it is below it, and last as the task says."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    temperature: _Float | None = Field(default=None, ge=0.0)
    top_p: _Float | None = Field(default=None, gt=0.0, le=1.0)
    top_k: _Int | None = Field(default=None, ge=0)
    repetition_penalty: _Float | None = Field(default=None, gt=0.0)
    max_new_tokens: _Int | None = Field(
        default=None, gt=0, validation_alias=AliasChoices("max_new_tokens", "max_out_len")
    )
    """Only where the task itself states no limit."""
    enable_thinking: bool | None = None
    """A switch of the chat template, for models that have it."""
    tensor_parallel_size: Annotated[Literal["auto", 1], BeforeValidator(_no_switch)] = "auto"
    """How many GPUs share a model. Grading takes one, so that training keeps the others; auto is that one."""

    def over(self, below: ModelSettings) -> ModelSettings:
        """These settings laid over others."""
        return below.model_copy(update={name: getattr(self, name) for name in self.model_fields_set})


class ModelTable(BaseModel):
    """A models.yaml."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    default: ModelSettings = ModelSettings()
    models: dict[str, ModelSettings] = Field(default_factory=dict)

    def settings(self, model: str) -> ModelSettings:
        """What counts for a model: its own entry, or that of the longest beginning, over the default."""
        entry = self.models.get(model)
        if entry is None:
            known = [name for name in self.models if len(name) >= _SHORTEST_PREFIX and model.startswith(name)]
            entry = self.models[max(known, key=len)] if known else ModelSettings()
        return entry.over(self.default)


def read_table(own: Path) -> ModelTable:
    """The table that ships, with the operator's file laid over it. UsageError naming file and field."""
    shipped = _read(_SHIPPED)
    if not own.is_file():
        return shipped
    mine = _read(own)
    return ModelTable(default=mine.default.over(shipped.default), models={**shipped.models, **mine.models})


def with_model_settings(task: TaskSpec, model: str, table: ModelTable) -> TaskSpec:
    """The task as it is asked of a model; as it is unless it leaves generation to the model."""
    if not task.generation.per_model:
        return task
    settings = table.settings(model)
    told = {name: getattr(settings, name) for name in _GENERATION}
    if "max_new_tokens" in task.generation.model_fields_set:
        del told["max_new_tokens"]
    generation = task.generation.model_copy(
        update={name: value for name, value in told.items() if value is not None}
    )
    switches: dict[str, Any] = {}
    if settings.enable_thinking is not None and "enable_thinking" not in task.prompt.chat_template_kwargs:
        switches = {"enable_thinking": settings.enable_thinking}
    kwargs = {**task.prompt.chat_template_kwargs, **switches}
    prompt = task.prompt.model_copy(update={"chat_template_kwargs": kwargs})
    return task.model_copy(update={"generation": generation, "prompt": prompt})


def _read(path: Path) -> ModelTable:
    try:
        data = yaml.safe_load(path.read_text("utf-8"))
        data = {} if data is None else data
        if not isinstance(data, dict):
            raise UsageError(f"{path}: a mapping with default and models is expected")
        return ModelTable.model_validate(_without_unused(data))
    except (OSError, UnicodeDecodeError, RecursionError, yaml.YAMLError) as error:
        raise UsageError(f"{path}: cannot be read: {' '.join(str(error).split())}") from error
    except ValidationError as error:
        fault = error.errors()[0]
        raise UsageError(f"{path}: {'.'.join(map(str, fault['loc']))}: {fault['msg']}") from error


def _without_unused(data: dict[str, Any]) -> dict[str, Any]:
    """The same without what an ancestor's file says and nothing here reads; blank entries are empty ones."""
    models = {} if data.get("models") is None else data["models"]
    if isinstance(models, dict):
        models = {str(name): _used({} if entry is None else entry) for name, entry in models.items()}
    default = {} if data.get("default") is None else data["default"]
    return {**data, "default": _used(default), "models": models}


def _used(entry: Any) -> Any:
    if not isinstance(entry, dict):
        return entry
    return {name: value for name, value in entry.items() if name not in _UNUSED}
