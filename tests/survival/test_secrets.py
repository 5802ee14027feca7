"""Keys that are passed to an agent, and the grading server's URL, stand in nothing that the lab writes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from posttrain.runs.secrecy import redact_file
from survival.kit import Site, version

KEY = "sk-live-51H8x0abcdefghijklmnop"
PASSED = {"OPENAI_API_KEY": KEY, "CHAT_MODEL": "some-driver-model", "WITH_PRICE": "1"}


def test_no_file_of_a_run_shows_a_passed_key_or_the_servers_url(site: Site) -> None:
    """But for what the agent itself wrote into its workspace."""
    telling = {"do": "dump_environment", "to": "code/env.json"}
    site.agent(
        [
            telling,
            {"do": "say", "text": KEY},
            *version(1, 0.6, note=f"made with {KEY}"),
            {"do": "post", "path": "/submit", "body": {"model_path": f"output/{KEY}"}},
        ],
        pass_env=["OPENAI_API_KEY", "CHAT_MODEL", "WITH_PRICE"],
    )
    harness = site.begin(env=PASSED)
    story = harness.story()
    ended = harness.end()
    assert ended.code == 0, ended
    agents_own = story.paths.workspace.code
    env = (agents_own / "env.json").read_text("utf-8")
    url_secret = re.search(r"/run/([^\"]+)", env)
    assert url_secret is not None
    for secret in (KEY, url_secret.group(1)):
        assert secret in env
        assert holders(story.paths.root, secret, but=agents_own) == []
        assert secret not in ended.stdout + ended.stderr
    assert "made with …" in str(story.rows("graded"))
    assert site.row(story).driver_model == "some-driver-model"
    assert re.search(r"agent.log: \d+ times a secret was taken out", story.run_log)
    site.assert_whole(story)


def holders(root: Path, secret: str, *, but: Path) -> list[str]:
    return [
        str(path.relative_to(root))
        for path in root.rglob("*")
        if path.is_file() and not path.is_relative_to(but) and secret.encode() in path.read_bytes()
    ]


@pytest.mark.parametrize("before", [0, 7, (1 << 20) - 5, (1 << 20) - 30, 1 << 20, (2 << 20) - 11])
def test_a_secret_is_found_wherever_it_stands_in_a_log(tmp_path: Path, before: int) -> None:
    log = tmp_path / "agent.log"
    log.write_bytes(b"x" * before + KEY.encode() + b"y" * 40 + KEY.encode())
    log.chmod(0o640)
    assert redact_file(log, [KEY]) == 2
    assert log.read_bytes() == b"x" * before + "…".encode() + b"y" * 40 + "…".encode()
    assert log.stat().st_mode & 0o777 == 0o640
    assert list(tmp_path.iterdir()) == [log]


def test_a_log_without_secrets_is_not_touched(tmp_path: Path) -> None:
    log = tmp_path / "agent.log"
    log.write_bytes(b"nothing")
    before = log.stat()
    assert redact_file(log, [KEY]) == 0
    assert log.stat() == before


@pytest.mark.slow
def test_a_base_model_that_changes_during_a_run_ends_it_by_name(site: Site) -> None:
    site.agent(
        [*version(1, 0.6), {"do": "append", "to": "code/now", "text": "x"}, {"do": "sleep", "seconds": 3}]
    )
    harness = site.begin()
    story = harness.story()
    harness.until(lambda: (story.paths.workspace.code / "now").exists())
    config = site.base / "generation_config.json"
    kept = config.read_bytes()
    config.write_bytes(kept + b" ")
    ended = harness.end()
    assert ended.code == 1
    assert story.record.status.value == "error"
    assert "generation_config.json has other content" in (story.record.reason or "")
    assert "base model" in (story.record.reason or "")
    refusal = site.resume(story)
    assert refusal.code == 2
    assert "generation_config.json has other content" in refusal.stderr
    config.write_bytes(kept)
    assert site.resume(story).code == 0
    site.assert_whole(story)
