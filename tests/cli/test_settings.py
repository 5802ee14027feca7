"""The environment as the command line reads it: settings and the .env file."""

from __future__ import annotations

from pathlib import Path

import pytest

from posttrain.core.errors import UsageError
from posttrain.infra.dotenv_file import load_dotenv_file
from posttrain.infra.settings import Settings, read_settings

ROOT = Path(__file__).resolve().parents[2]


def dotenv(folder: Path, text: str) -> Path:
    path = folder / ".env"
    path.write_text(text, "utf-8")
    return path


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("NAME=plain", "plain"),
        ("NAME = spaced out  ", "spaced out"),
        ("export NAME=exported", "exported"),
        ("NAME='single \"quoted\" $HOME ${HOME} \\n'", 'single "quoted" $HOME ${HOME} \\n'),
        ('NAME="double \\"quoted\\" a\\nb"', 'double "quoted" a\nb'),
        ('NAME="put it within \\\\boxed{}"', "put it within \\boxed{}"),
        ("NAME=back\\slash\\boxed{42}", "back\\slash\\boxed{42}"),
        ("NAME=a=b&c=d", "a=b&c=d"),
        ("NAME=value # a remark", "value"),
        ("NAME='sharp # inside'", "sharp # inside"),
        ("NAME=", ""),
        ("NAME=模型", "模型"),
    ],
)
def test_values_are_read_literally(tmp_path: Path, line: str, value: str) -> None:
    environ: dict[str, str] = {}
    load_dotenv_file(dotenv(tmp_path, f"# remark\n\n{line}\nLAST=1\n"), environ)
    assert environ == {"NAME": value, "LAST": "1"}


def test_what_is_set_is_never_overridden(tmp_path: Path) -> None:
    environ = {"NAME": "set", "EMPTY": ""}
    load_dotenv_file(dotenv(tmp_path, "NAME=other\nEMPTY=other\nNEW=1\n"), environ)
    assert environ == {"NAME": "set", "EMPTY": "", "NEW": "1"}


def test_a_missing_file_is_fine(tmp_path: Path) -> None:
    environ: dict[str, str] = {}
    load_dotenv_file(tmp_path / ".env", environ)
    assert environ == {}


@pytest.mark.parametrize("line", ['NAME="unclosed', "just words here", "NAME", "NA-ME=1", "NAME='a' b"])
def test_a_broken_line_is_named(tmp_path: Path, line: str) -> None:
    environ: dict[str, str] = {}
    with pytest.raises(UsageError, match=r"\.env, line 4: "):
        load_dotenv_file(dotenv(tmp_path, f"GOOD=1\n\n# remark\n{line}\n"), environ)


def test_every_line_of_the_example_works_when_uncommented(tmp_path: Path) -> None:
    text = (ROOT / ".env.example").read_text("utf-8")
    lines = [line.removeprefix("# ") for line in text.splitlines() if "=" in line and line.startswith("# ")]
    assert len(lines) >= 25
    environ: dict[str, str] = {}
    load_dotenv_file(dotenv(tmp_path, "\n".join(lines)), environ)
    assert len(environ) == len(lines)
    assert environ["FT_BENCHMARK_DESCRIPTION"].endswith("for example \\boxed{42}.")


def test_the_example_lists_every_setting() -> None:
    text = (ROOT / ".env.example").read_text("utf-8")
    for field in Settings.model_fields.values():
        assert f"{field.validation_alias}=" in text


def test_paths_are_expanded_and_lists_split(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("POSTTRAIN_HOME", "~/lab")
    monkeypatch.setenv("POSTTRAIN_BENCHMARKS", "$HOME/a: :/b")
    settings = read_settings()
    assert settings.home == tmp_path / "lab"
    assert settings.benchmarks == (tmp_path / "a", Path("/b"))


def test_defaults_and_empty_values(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for field in Settings.model_fields.values():
        monkeypatch.delenv(str(field.validation_alias), raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("POSTTRAIN_HOME", "")
    monkeypatch.setenv("AUTORL_FILE_PATH", " ")
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.chdir(tmp_path)
    settings = read_settings()
    assert settings.home == tmp_path / ".posttrain"
    assert settings.smith == tmp_path.parent / "rl-smith" / "benchmarks"
    assert settings.adopted == ()
    assert settings.hub_offline is False
