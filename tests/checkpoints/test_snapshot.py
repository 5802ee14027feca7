"""The grader's copy: only regular files of the folder that was named, whole, hashed, or nothing at all."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
import time
from pathlib import Path

import pytest

from grading_kit import write_safetensors
from posttrain.checkpoints.intake import printable
from posttrain.checkpoints.snapshot import Snapshot, SnapshotLimits, take_snapshot
from posttrain.core.errors import (
    InfrastructureError,
    Rejected,
    StorageFull,
    SubmissionFault,
    Unloadable,
)
from posttrain.infra.digests import digest_tree
from posttrain.testing.tiny import tiny_model

LIMITS = SnapshotLimits(weight_bytes=2 << 20, small_bytes=1 << 16, entries=50, settle_s=0.05)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    (folder / "output").mkdir(parents=True)
    return folder


def _save(workspace: Path, name: str = "v1", data: bytes = b"weights") -> Path:
    folder = workspace / "output" / name
    write_safetensors(folder / "model.safetensors", data)
    (folder / "config.json").write_text('{"model_type": "llama"}', "utf-8")
    return folder


def _take(
    workspace: Path, relative: str = "output/v1", *, limits: SnapshotLimits = LIMITS
) -> tuple[Snapshot, Path]:
    target = workspace.parent / "submissions" / "1"
    target.parent.mkdir(exist_ok=True)
    return take_snapshot(workspace, relative, target, limits=limits), target


def _nothing_left(workspace: Path) -> bool:
    return not list((workspace.parent / "submissions").iterdir())


def test_the_digest_is_of_names_and_bytes_of_the_copy(workspace: Path) -> None:
    _save(workspace)
    snapshot, target = _take(workspace)
    assert snapshot.digest == digest_tree(target)
    assert snapshot.files == ("config.json", "model.safetensors")
    assert snapshot.bytes == sum(path.stat().st_size for path in target.iterdir())


def test_only_weights_and_the_small_files_we_read_are_copied(workspace: Path) -> None:
    folder = _save(workspace)
    for name in ("optimizer.pt", "training_args.bin", "modeling_x.py", "tokenizer.json", "notes.txt"):
        (folder / name).write_text("x", "utf-8")
    (folder / "checkpoint-10").mkdir()
    write_safetensors(folder / "extra.safetensors", b"not named by anything")
    snapshot, target = _take(workspace)
    assert sorted(path.name for path in target.iterdir()) == ["config.json", "model.safetensors"]
    assert set(snapshot.ignored) == {
        "optimizer.pt",
        "training_args.bin",
        "modeling_x.py",
        "tokenizer.json",
        "notes.txt",
        "checkpoint-10/",
        "extra.safetensors",
    }


def test_shards_come_with_their_index(workspace: Path) -> None:
    tiny_model(workspace / "output" / "v1", shards=3)
    snapshot, _ = _take(workspace)
    assert "model.safetensors.index.json" in snapshot.files
    assert sum(name.endswith(".safetensors") for name in snapshot.files) == 3


def test_the_copy_is_unaffected_by_later_changes(workspace: Path) -> None:
    folder = _save(workspace)
    snapshot, target = _take(workspace)
    _save(workspace, data=b"swapped")
    os.utime(folder / "model.safetensors", (0, 0))
    assert digest_tree(target) == snapshot.digest


def test_a_real_checkpoint_of_the_base_fits_in_any_allowed_dtype(workspace: Path, tmp_path: Path) -> None:
    base = tiny_model(tmp_path / "base", dtype="BF16", tied=True)
    limits = SnapshotLimits.for_base(base)
    tiny_model(workspace / "output" / "v1", dtype="F32", tied=False)
    snapshot, _ = _take(workspace, limits=limits)
    assert snapshot.bytes < limits.weight_bytes < 1.2 * snapshot.bytes


def test_links_in_the_path_are_rejected(workspace: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    write_safetensors(elsewhere / "v1" / "model.safetensors", b"secret")
    (workspace / "output" / "direct").symlink_to(elsewhere / "v1")
    (workspace / "output" / "parent").symlink_to(elsewhere)
    for relative in ("output/direct", "output/parent/v1"):
        with pytest.raises(Rejected, match="symbolic link"):
            _take(workspace, relative)
    assert _nothing_left(workspace)


def test_a_linked_output_folder_is_rejected(workspace: Path, tmp_path: Path) -> None:
    write_safetensors(tmp_path / "elsewhere" / "v1" / "model.safetensors", b"secret")
    (workspace / "output").rmdir()
    (workspace / "output").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Rejected, match="output is a symbolic link"):
        _take(workspace)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_file_that_is_a_link_is_rejected(workspace: Path, tmp_path: Path, name: str) -> None:
    folder = _save(workspace)
    (folder / name).rename(tmp_path / "elsewhere")
    (folder / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Rejected, match="symbolic link") as refused:
        _take(workspace)
    assert "cp -rL" in refused.value.hint


def test_a_hard_link_is_rejected(workspace: Path, tmp_path: Path) -> None:
    folder = _save(workspace)
    os.link(folder / "model.safetensors", tmp_path / "other name")
    with pytest.raises(Rejected, match="hard link"):
        _take(workspace)


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    folder = os.open(path.parent, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(f"/proc/self/fd/{folder}/{path.name}")  # names of sockets must be short
    os.close(folder)


def _folder(path: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize("make", [_pipe, _socket])
def test_special_files_are_rejected_without_waiting_for_them(workspace: Path, make) -> None:
    folder = _save(workspace)
    (folder / "model.safetensors").unlink()
    make(folder / "model.safetensors")
    begun = time.monotonic()
    with pytest.raises(Rejected, match="not a regular file"):
        _take(workspace)
    assert time.monotonic() - begun < 1.0


def test_a_device_is_rejected(workspace: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("making a device needs root")
    folder = _save(workspace)
    (folder / "model.safetensors").unlink()
    try:
        os.mknod(folder / "model.safetensors", 0o600 | 0o020000, os.makedev(1, 5))
    except OSError as error:
        pytest.skip(f"no devices here: {error}")
    with pytest.raises(Rejected, match="not a regular file"):
        _take(workspace)


def test_special_files_that_nobody_asks_for_do_no_harm(workspace: Path) -> None:
    folder = _save(workspace)
    _pipe(folder / "pipe")
    (folder / "loop").symlink_to(folder)
    snapshot, _ = _take(workspace)
    assert snapshot.ignored == ("loop", "pipe")


def test_a_folder_in_the_place_of_the_weights_is_unloadable(workspace: Path) -> None:
    (workspace / "output" / "v1" / "model.safetensors").mkdir(parents=True)
    with pytest.raises(Unloadable):
        _take(workspace)


def test_a_sparse_file_counts_with_its_full_length(workspace: Path) -> None:
    folder = _save(workspace)
    with (folder / "model.safetensors").open("r+b") as file:
        file.truncate(1 << 40)
    begun = time.monotonic()
    with pytest.raises(Rejected, match="bytes of weights"):
        _take(workspace)
    assert time.monotonic() - begun < 1.0
    assert _nothing_left(workspace)


def test_a_large_small_file_is_rejected(workspace: Path) -> None:
    folder = _save(workspace)
    (folder / "config.json").write_text(" " * (LIMITS.small_bytes + 1), "utf-8")
    with pytest.raises(Rejected, match=r"config\.json"):
        _take(workspace)


def test_a_folder_with_too_many_entries_is_rejected(workspace: Path) -> None:
    folder = _save(workspace)
    for number in range(LIMITS.entries):
        (folder / f"f{number}").touch()
    with pytest.raises(Rejected, match="entries"):
        _take(workspace)


def test_at_most_a_hundred_ignored_names_are_listed(workspace: Path) -> None:
    folder = _save(workspace)
    for number in range(130):
        (folder / f"f{number}").touch()
    snapshot, _ = _take(workspace, limits=SnapshotLimits(weight_bytes=1 << 20))
    assert len(snapshot.ignored) == 101
    assert snapshot.ignored[-1] == "… and 30 more"


@pytest.mark.parametrize(
    ("files", "kind", "hint"),
    [
        (["adapter_model.safetensors", "adapter_config.json"], Rejected, "merge_and_unload"),
        (["pytorch_model.bin", "config.json"], Rejected, "safe_serialization"),
        (["model-00001-of-00002.safetensors"], Unloadable, "saving has ended"),
        (["training_args.bin", "optimizer.pt"], Unloadable, "save_pretrained"),
        ([], Unloadable, "save_pretrained"),
    ],
)
def test_folders_without_usable_weights_say_what_to_do(
    workspace: Path, files: list[str], kind: type[SubmissionFault], hint: str
) -> None:
    folder = workspace / "output" / "v1"
    folder.mkdir()
    for name in files:
        (folder / name).write_bytes(b"x")
    with pytest.raises(kind) as refused:
        _take(workspace)
    assert hint in refused.value.hint


def test_weights_one_level_too_deep_are_pointed_at(workspace: Path) -> None:
    _save(workspace, "v1/checkpoint-20")
    with pytest.raises(Unloadable) as refused:
        _take(workspace)
    assert "checkpoint-20" in refused.value.hint


def test_whole_weights_are_taken_whatever_lies_beside_them(workspace: Path) -> None:
    folder = _save(workspace)
    for name in ("adapter_config.json", "adapter_model.safetensors", "pytorch_model.bin"):
        (folder / name).write_bytes(b"x")
    snapshot, _ = _take(workspace)
    assert "model.safetensors" in snapshot.files


@pytest.mark.parametrize(
    "index",
    [
        b"not json",
        b"[" * 100_000,
        b"{}",
        b'{"weight_map": {"w": "../../../etc/passwd"}}',
        b'{"weight_map": {"w": "sub/model.safetensors"}}',
        b'{"weight_map": {"w": 5}}',
        b'{"weight_map": {"w": "a\\u0000.safetensors"}}',
        b'{"weight_map": {"w": "\\ud800.safetensors"}}',
        b'{"weight_map": {"w": "missing.safetensors"}}',
    ],
)
def test_an_index_that_makes_no_sense_is_the_submission_s_fault(workspace: Path, index: bytes) -> None:
    folder = workspace / "output" / "v1"
    folder.mkdir()
    (folder / "model.safetensors.index.json").write_bytes(index)
    with pytest.raises(SubmissionFault) as refused:
        _take(workspace, limits=SnapshotLimits(weight_bytes=1 << 20, settle_s=0.01))
    str(printable(refused.value.reason)).encode("utf-8")
    assert _nothing_left(workspace)


@pytest.mark.parametrize("cut", [0, 4, 20, -1])
def test_weights_that_were_cut_off_are_unloadable(workspace: Path, cut: int) -> None:
    path = _save(workspace) / "model.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:cut])
    with pytest.raises(Unloadable):
        _take(workspace)
    assert _nothing_left(workspace)


def test_a_file_that_goes_on_changing_is_still_being_written(workspace: Path) -> None:
    path = _save(workspace, data=bytes(64 << 20)) / "model.safetensors"
    stop = threading.Event()

    def write() -> None:
        with path.open("r+b") as file:
            while not stop.is_set():
                file.seek(200)
                file.write(os.urandom(8))
                file.flush()

    thread = threading.Thread(target=write)
    thread.start()
    try:
        with pytest.raises(Unloadable, match="still being written"):
            _take(workspace, limits=SnapshotLimits(weight_bytes=128 << 20, settle_s=0.05))
    finally:
        stop.set()
        thread.join()
    assert _nothing_left(workspace)


def test_a_save_that_ends_while_we_wait_is_taken(workspace: Path) -> None:
    path = _save(workspace) / "model.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-3])
    finish = threading.Timer(0.2, lambda: path.write_bytes(whole))
    finish.start()
    snapshot, target = _take(workspace, limits=SnapshotLimits(weight_bytes=1 << 20, settle_s=0.6))
    finish.join()
    assert (target / "model.safetensors").read_bytes() == whole
    assert snapshot.bytes > len(whole)


def test_a_file_that_the_grader_cannot_read_is_unloadable(workspace: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root reads everything")
    path = _save(workspace) / "model.safetensors"
    path.chmod(0)
    with pytest.raises(Unloadable, match="cannot be read"):
        _take(workspace)


def test_a_stopped_copy_leaves_nothing(workspace: Path) -> None:
    _save(workspace)
    stopped = threading.Event()
    stopped.set()
    target = workspace.parent / "submissions" / "1"
    target.parent.mkdir()
    with pytest.raises(InfrastructureError):
        take_snapshot(workspace, "output/v1", target, limits=LIMITS, cancelled=stopped)
    assert _nothing_left(workspace)


def test_a_full_disk_is_named_and_leaves_nothing(workspace: Path, tmp_path: Path) -> None:
    small = tmp_path / "submissions"
    small.mkdir()
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(small)], capture_output=True, check=False
    )
    if mount.returncode != 0:
        pytest.skip(f"no small disk here: {mount.stderr.decode()}")
    try:
        _save(workspace, data=b"x" * (1 << 20))
        with pytest.raises(StorageFull):
            _take(workspace)
        assert not list(small.iterdir())
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_names_are_shown_without_control_characters_and_broken_text(workspace: Path) -> None:
    folder = _save(workspace)
    (folder / "a\nb").touch()
    (folder / "c\x1b[31m").touch()
    (folder / os.fsdecode(b"d\xff")).touch()
    snapshot, _ = _take(workspace)
    assert snapshot.ignored == ("a\\nb", "c\\x1b[31m", "d\\udcff")
    json.dumps(snapshot.model_dump(mode="json"), ensure_ascii=False).encode("utf-8")
