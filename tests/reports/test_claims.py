"""What people write in bullets, read as claims: many spellings, one meaning."""

from __future__ import annotations

import pytest

from posttrain.reports.summaries import told
from posttrain.reports.summaries.text import Section, parse


def section(label: str, text: str) -> Section:
    document = parse(
        f"# 运行总结\n\n## Iteration 1 (2026-01-01 00:00, 耗时 1s)\n\n- **{label}**: {text}\n".encode()
    )
    return document.sections[0]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("lr=1e-5, batch=2", {"lr": "1e-5", "batch": "2"}),
        ("lr1e-5, batch2, max_steps20", {"lr": "1e-5", "batch": "2", "max_steps": "20"}),
        ("learning_rate: 1e-5；per_device_train_batch_size: 2", {"lr": "1e-5", "batch": "2"}),
        ("`lr=1e-5` (cosine), epochs=3 epochs", {"lr": "1e-5", "epochs": "3"}),
        ("lr＝1e-5，batch＝２", {"lr": "1e-5", "batch": "2"}),
        ("lr=1e-5\n  - batch=2\n  - LoRA r=16", {"lr": "1e-5", "batch": "2", "lora r": "16"}),
        ("unknown", {}),
        ("同上", {}),
    ],
)
def test_hyper_parameters(text: str, found: dict[str, str]) -> None:
    assert told.config(section("关键配置", text)) == found


@pytest.mark.parametrize(
    ("text", "score", "gain", "best", "where"),
    [
        ("65.0 | Improvement: 20.0 | Best: 68.0 (iter 3)", 65.0, 20.0, 68.0, 3),
        ("65.0 ｜ Improvement：-2.5 ｜ Best：68（iter 3）", 65.0, -2.5, 68.0, 3),
        ("**65** | **Improvement**: +20 | **Best**: 68.0 (Iteration 3)", 65.0, 20.0, 68.0, 3),
        ("N/A | Improvement: N/A | Best: 68.0 (iter 3)", None, None, 68.0, 3),
        ("null | Improvement: - | Best: 无", None, None, None, None),
        ("0.00 | Improvement: 0 | Best: 0.0 (iter 1)", 0.0, 0.0, 0.0, 1),
    ],
)
def test_scores(
    text: str, score: float | None, gain: float | None, best: float | None, where: int | None
) -> None:
    found = told.scores(section("Score", text))
    values = [None if n is None else n.value for n in (found.score, found.improvement, found.best)]
    assert (values, found.best_iteration, found.missing) == ([score, gain, best], where, ())


@pytest.mark.parametrize(
    "text", ["NaN", "inf", "65.0.1", "sixty", "65 | 20 | 68", "65.0 | Improvement: 20.0"]
)
def test_what_is_no_score_is_missing(text: str) -> None:
    assert told.scores(section("Score", text)).missing


@pytest.mark.parametrize(
    ("text", "good", "code"),
    [
        ("✅ 成功 (exit_code=0)", True, 0),
        ("❌ 失败 (exit_code=137)", False, 137),
        ("✅ 成功（exit_code0）", True, 0),
        ("❌ failure (exit code: -9)", False, -9),
        ("success, exit_code = 0", True, 0),
        ("✅ 失败 (exit_code=1)", None, 1),
        ("在跑", None, None),
    ],
)
def test_status(text: str, good: bool | None, code: int | None) -> None:
    assert told.status(section("状态", text)) == (good, code)


@pytest.mark.parametrize(
    ("written", "value", "matches"),
    [
        ("65", 65.4, True),
        ("65.0", 65.04, True),
        ("65.0", 65.06, False),
        ("100%", 1.0, True),
        ("1,319", 1319.0, True),
        ("1e-5", 1e-5, True),
    ],
)
def test_a_number_is_as_exact_as_its_digits(written: str, value: float, matches: bool) -> None:
    number = told.number(written)
    assert number is not None
    assert number.matches(value) is matches


@pytest.mark.parametrize(
    "text", ["与 Iteration 3 相同（无变更）", "与 Iteration 3 相同无变更", "same as Iteration 3 (no change)"]
)
def test_the_same_code_as_an_earlier_one(text: str) -> None:
    assert told.same_as(text) == 3
