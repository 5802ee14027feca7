"""What an agent left is read as texts: nothing is followed, nothing hangs, what was not read is listed."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import re
import zipfile
from pathlib import Path

import pytest

from posttrain.reports.audit import Document
from posttrain.reports.audit_files import Left, Limits, documents, mentions

TEXT = "the quick brown fox jumps over the lazy dog"


def read(root: Path, **limits: int) -> tuple[dict[str, str], Left]:
    left = Left()
    found = documents(root, skip=frozenset({"models"}), limits=Limits(**limits), left=left)
    return {document.name: document.text for document in found}, left


def test_texts_are_read_and_what_was_given_is_not(tmp_path: Path) -> None:
    for name in ("code/a.py", "output/v1/config.json", "notes.md", "models/base/data.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(TEXT)
    (tmp_path / "output/v1/model.safetensors").write_bytes(b"w" * 100)
    texts, left = read(tmp_path)
    assert set(texts) == {"code/a.py", "output/v1/config.json", "notes.md"}
    assert (left.files, left.unread) == (3, [])


@pytest.mark.parametrize(
    ("suffix", "pack"), [(".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress)]
)
def test_packed_texts_are_unpacked(tmp_path: Path, suffix: str, pack) -> None:
    (tmp_path / f"data.jsonl{suffix}").write_bytes(pack(TEXT.encode()))
    assert read(tmp_path)[0] == {f"data.jsonl{suffix}": TEXT}


def test_archives_are_looked_into(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "rows.zip", "w") as archive:
        archive.writestr("inner/rows.txt", TEXT)
    assert read(tmp_path)[0] == {"rows.zip:inner/rows.txt": TEXT}


def test_a_bomb_is_cut_at_the_limit(tmp_path: Path) -> None:
    (tmp_path / "bomb.gz").write_bytes(gzip.compress(b"a" * 10_000_000))
    texts, _ = read(tmp_path, file_bytes=100_000)
    assert len(texts["bomb.gz"]) == 100_000


def test_text_inside_other_formats_is_found(tmp_path: Path) -> None:
    (tmp_path / "table.arrow").write_bytes(b"\0\1\2\3" * 50 + TEXT.encode() + b"\0" * 100)
    assert TEXT in read(tmp_path)[0]["table.arrow"]


def test_other_encodings_are_read(tmp_path: Path) -> None:
    (tmp_path / "wide.txt").write_text(TEXT, "utf-16")
    assert TEXT in read(tmp_path)[0]["wide.txt"]


def test_links_pipes_and_damage_are_listed_and_not_read(tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret/key").write_text("key")
    root = tmp_path / "workspace"
    root.mkdir()
    (root / "link").symlink_to(tmp_path / "secret/key")
    (root / "folder").symlink_to(tmp_path / "secret")
    os.mkfifo(root / "pipe")
    (root / "damaged.gz").write_bytes(b"\x1f\x8bno")
    (root / "rows.parquet").write_bytes(b"PAR1" + bytes(100))
    texts, left = read(root)
    assert texts == {}
    told = " ".join(left.unread)
    assert all(name in told for name in ("link", "pipe", "damaged.gz", "rows.parquet"))


def test_what_is_too_large_is_listed(tmp_path: Path) -> None:
    (tmp_path / "large.txt").write_text("x" * 1000)
    (tmp_path / "small.txt").write_text(TEXT)
    texts, left = read(tmp_path, file_bytes=500)
    assert set(texts) == {"small.txt"}
    assert left.unread == ["large.txt (1,000 bytes)"]


def test_mentions_name_the_line() -> None:
    document = Document("agent.log", "one\ncurl https://huggingface.co/datasets/openai/gsm8k\n")
    (mention,) = mentions(document, re.compile(r"huggingface\.co/datasets\S*"))
    assert (mention.what, mention.line) == ("huggingface.co/datasets/openai/gsm8k", 2)
