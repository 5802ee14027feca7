"""instructions.md and RULES.md say what a run is about."""

from __future__ import annotations

import re

from posttrain.agents.texts import RULES_SENTENCE, RunFacts, render_instructions, rules_hash, rules_text
from posttrain.infra.digests import digest_bytes

FACTS = RunFacts(
    task="boolean",
    base_model="smollm2-135m",
    rows=20000,
    timeout_s=240,
    protocol="holdout",
    validation_items=250,
    max_submissions=50,
    grading_memory=0.25,
    grading_timeout_s=7200,
    network="grader",
    isolation="bwrap",
)


def test_every_contract_variable_and_endpoint_is_named() -> None:
    text = render_instructions(FACTS)
    for word in [
        *("TASK", "BASE_MODEL", "WORKSPACE", "MODEL_PATH", "DATA_PATH", "OUTPUT_DIR", "GRADING_SERVER_URL"),
        *("TIMEOUT_S", "DEADLINE", "RUN_ID", "SEED", "POSTTRAIN_PYTHON"),
        *("/submit", "/submissions", "/time", "/health", "/rules", "run_meta.json", "prompt/"),
        *(
            "safe_serialization",
            "merge_and_unload",
            "null",
            "Retry-After",
            "4m",
            "240 s",
            "20000",
            "250",
            "50",
        ),
    ]:
        assert word in text, word


def test_the_numbers_are_those_of_the_run() -> None:
    text = render_instructions(
        FACTS.model_copy(update={"protocol": "open", "network": "host", "gpus": ("0", "1"), "resumed": 2})
    )
    assert "the best submission counts" in text
    assert "The world can be reached" in text
    assert "visible: 0, 1" in text
    assert "POSTTRAIN_RESUMED=2" in text


def test_nothing_of_the_template_is_left_and_no_gap_is_torn() -> None:
    text = render_instructions(FACTS.model_copy(update={"skills": ("summary",), "exposed": ("eval.py",)}))
    assert not re.search(r"\{\{|\}\}|\{%|%\}|\n\n\n", text)
    assert "- `skills/summary/SKILL.md`" in text


def test_rules_end_with_the_sentence_that_every_answer_repeats() -> None:
    assert rules_text().rstrip().endswith(RULES_SENTENCE)
    assert rules_text().startswith("# Rules, version ")
    assert rules_hash() == digest_bytes(rules_text().encode())
