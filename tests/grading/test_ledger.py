"""The ledger: durable rows, one writer, a chain that names the first byte that does not fit."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from posttrain.core.errors import LedgerError, StorageFull
from posttrain.grading.ledger import FIRST, Ledger, read_rows, verify
from posttrain.infra.digests import digest_bytes


def _ledger(folder: Path) -> Ledger:
    return Ledger(folder / "ledger.jsonl", torn=folder / "ledger.torn")


def _filled(folder: Path, rows: int = 3) -> Path:
    with _ledger(folder) as ledger:
        for number in range(rows):
            ledger.append("event", {"number": number})
    return folder / "ledger.jsonl"


def test_each_row_names_the_hash_of_the_exact_line_before_it(tmp_path: Path) -> None:
    lines = _filled(tmp_path).read_bytes().splitlines(keepends=True)
    named = [json.loads(line)["prev"] for line in lines]
    assert named == [FIRST, digest_bytes(lines[0]), digest_bytes(lines[1])]


def test_head_and_count_are_those_of_the_file(tmp_path: Path) -> None:
    with _ledger(tmp_path) as ledger:
        ledger.append("opened", {})
        ledger.append("closed", {})
        chain = verify(tmp_path / "ledger.jsonl", head=ledger.head)
        assert (chain.head, chain.count) == (ledger.head, ledger.count) == (ledger.head, 2)


def test_a_reopened_ledger_goes_on_where_it_ended(tmp_path: Path) -> None:
    path = _filled(tmp_path)
    with _ledger(tmp_path) as ledger:
        row = ledger.append("event", {"again": True})
    assert row.seq == 3
    assert verify(path).count == 4


def test_rows_from_many_threads_form_one_chain(tmp_path: Path) -> None:
    with _ledger(tmp_path) as ledger:
        threads = [
            threading.Thread(target=lambda: [ledger.append("event", {"x": "y" * 500}) for _ in range(25)])
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert verify(tmp_path / "ledger.jsonl").count == 200


def test_an_incomplete_last_line_is_set_aside_and_told(tmp_path: Path) -> None:
    path = _filled(tmp_path)
    with path.open("ab") as file:
        file.write(b'{"data":{"half')
    with _ledger(tmp_path) as ledger:
        last = ledger.rows()[-1]
    assert last.kind == "event"
    assert last.data["bytes"] == 14
    assert (tmp_path / "ledger.torn").read_bytes() == b'{"data":{"half\n'
    assert verify(path).count == 4


@pytest.mark.parametrize("cut", [1, 10, 60])
def test_any_length_of_a_cut_off_last_row_is_recovered_from(tmp_path: Path, cut: int) -> None:
    path = _filled(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    with _ledger(tmp_path) as ledger:
        assert ledger.count == 3  # two rows and the event
    assert verify(path).count == 3


def test_any_single_changed_byte_is_found(tmp_path: Path) -> None:
    path = _filled(tmp_path)
    with _ledger(tmp_path) as ledger:
        head = ledger.head
    whole = path.read_bytes()
    for position in range(len(whole)):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        with pytest.raises(LedgerError):
            verify(path, head=head)


def test_a_removed_row_a_swapped_pair_and_an_added_row_are_found(tmp_path: Path) -> None:
    path = _filled(tmp_path, rows=4)
    first, second, third, fourth = path.read_bytes().splitlines(keepends=True)
    for edited in (
        first + third + fourth,
        first + third + second + fourth,
        first + second + second + third + fourth,
    ):
        path.write_bytes(edited)
        with pytest.raises(LedgerError, match=r"line [23]:"):
            verify(path)


def test_a_shortened_ledger_is_consistent_and_only_the_head_tells(tmp_path: Path) -> None:
    path = _filled(tmp_path)
    head = verify(path).head
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    assert verify(path).count == 2
    with pytest.raises(LedgerError, match="the head is"):
        verify(path, head=head)


def test_a_broken_chain_is_not_opened(tmp_path: Path) -> None:
    path = _filled(tmp_path)
    path.write_bytes(path.read_bytes().replace(b'"number":1', b'"number":7'))
    with pytest.raises(LedgerError, match="line 3"):
        _ledger(tmp_path)


def test_verify_writes_nothing_and_wants_complete_lines(tmp_path: Path) -> None:
    path = _filled(tmp_path)
    path.write_bytes(path.read_bytes() + b"half")
    with pytest.raises(LedgerError, match="incomplete"):
        verify(path)
    assert path.read_bytes().endswith(b"half")
    assert not (tmp_path / "ledger.torn").exists()


def test_a_missing_ledger_is_a_ledger_error(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="no ledger"):
        verify(tmp_path / "none.jsonl")


def test_a_second_process_cannot_write(tmp_path: Path) -> None:
    attempt = """
import sys, pathlib
from posttrain.grading.ledger import Ledger
folder = pathlib.Path(sys.argv[1])
Ledger(folder / "ledger.jsonl", torn=folder / "ledger.torn")
"""
    with _ledger(tmp_path):
        other = subprocess.run(
            [sys.executable, "-c", attempt, str(tmp_path)], capture_output=True, text=True, timeout=60
        )
    assert other.returncode == 1
    assert "being written by another process" in other.stderr


def test_a_closed_ledger_takes_no_row(tmp_path: Path) -> None:
    ledger = _ledger(tmp_path)
    ledger.close()
    ledger.close()
    with pytest.raises(LedgerError, match="closed"):
        ledger.append("event", {})


def test_texts_that_are_not_unicode_survive(tmp_path: Path) -> None:
    with _ledger(tmp_path) as ledger:
        ledger.append("event", {"name": "a\udcff\n\u2028"})
    assert read_rows(tmp_path / "ledger.jsonl")[0].data["name"] == "a\udcff\n\u2028"


def test_a_row_that_does_not_fit_on_the_disk_leaves_the_ledger_as_it_was(tmp_path: Path) -> None:
    path = _filled(tmp_path)
    before = path.read_bytes()
    with _ledger(tmp_path) as ledger:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 40, hard))  # the kernel takes 40 bytes more
        try:
            with pytest.raises(StorageFull):
                ledger.append("event", {"text": "x" * 200})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert path.read_bytes() == before
        ledger.append("event", {"text": "later"})
    assert verify(path).count == 4
