"""The two texts every agent gets beside the task's own: instructions.md and RULES.md."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from jinja2 import Environment, StrictUndefined

from posttrain.core.frozen import Frozen
from posttrain.infra.digests import digest_bytes
from posttrain.infra.durations import format_duration

_FOLDER = Path(__file__).parent
RULES_SENTENCE = "A breach disqualifies the run."
"""The last sentence of RULES.md, repeated in every answer of the grading server."""


class RunFacts(Frozen):
    """What instructions.md says about one run; never a secret or a path outside the workspace."""

    task: str
    base_model: str
    rows: int
    """Rows of data/train.jsonl."""
    timeout_s: float
    protocol: Literal["holdout", "open"]
    validation_items: int
    """Items behind the score that /submit returns."""
    max_submissions: int
    grading_memory: float
    grading_timeout_s: float
    network: Literal["grader", "host"]
    isolation: Literal["bwrap", "none"]
    gpus: tuple[str, ...] = ()
    exposed: tuple[str, ...] = ()
    """Names of task files in the workspace."""
    skills: tuple[str, ...] = ()
    resumed: int = 0


def render_instructions(facts: RunFacts) -> str:
    """instructions.md for one run, in Markdown."""
    # Markdown for a shell-minded reader, not HTML: escaping would spoil quotes and arrows
    environment = Environment(autoescape=False, undefined=StrictUndefined, keep_trailing_newline=True)
    template = environment.from_string((_FOLDER / "instructions.md.j2").read_text("utf-8"))
    text = template.render(
        facts.model_dump()
        | {
            "timeout": format_duration(facts.timeout_s),
            "timeout_s": int(facts.timeout_s),
            "grading_timeout": format_duration(facts.grading_timeout_s),
        }
    )
    return text.rstrip("\n") + "\n"


def skills_folder() -> Path:
    """What every workspace shows as skills/: a folder a skill, each with its SKILL.md."""
    return _FOLDER / "skills"


def skill_names() -> tuple[str, ...]:
    return tuple(sorted(path.parent.name for path in skills_folder().glob("*/SKILL.md")))


def rules_text() -> str:
    """RULES.md as it is put into every workspace."""
    return (_FOLDER / "RULES.md").read_text("utf-8")


def rules_hash() -> str:
    """Digest of RULES.md, kept in plan.json and sent with every answer."""
    return digest_bytes(rules_text().encode("utf-8"))
