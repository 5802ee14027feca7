"""What the driver model answers with in this scenario."""

from __future__ import annotations

import ast
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from posttrain.llm.extraction import Block
from posttrain.research.nodes import Proposal

MOST_CODE = 200_000


class Idea(Proposal):
    """A way to train."""

    method: Literal["SFT", "GRPO", "PPO", "DPO", "other"] = Field(
        default="other", description="the kind of training"
    )

    @field_validator("method", mode="before")
    @classmethod
    def _known(cls, value: Any) -> Any:
        """Small models write `sft` or `SFT + GRPO`; the kind is a label and worth no repair."""
        told = value.upper() if isinstance(value, str) else ""
        names = [name for name in ("GRPO", "PPO", "DPO", "SFT") if name in told]
        return names[0] if names else "other"


class Program(BaseModel):
    """A whole training script."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    changes: str = Field(default="", description="what it does, and what differs from the parent")
    code: Annotated[str, Block("python")] = Field(
        min_length=1, max_length=MOST_CODE, description="the whole training script, ready to run"
    )

    @field_validator("code")
    @classmethod
    def _parses(cls, value: str) -> str:
        value = value.removeprefix("\ufeff")
        try:
            tree = ast.parse(value)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise ValueError(f"the script is no Python: {type(error).__name__}: {error}") from error
        if not tree.body:
            raise ValueError("the script is empty")
        return value if value.endswith("\n") else value + "\n"
