"""How much hashing and care add to copying a submission: 1 GB in four files.

    python benchmarks/intake.py [--gigabytes 1] [--runs 5] [--folder DIR]

Alternates three ways over the same files and prints one JSON document: `plain` copies by read and write,
`hashed` is the grader's own loop (copy and BLAKE3 in one pass), both in the same block size and without
fsync; `snapshot` is the whole intake as a run does it, fsync, checks and rename included.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import struct
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from posttrain.checkpoints.snapshot import BLOCK, SnapshotLimits, copy_hashed, take_snapshot

FILES = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument(
        "--folder", type=Path, default=None, help="where to work (default: a temporary folder)"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as made:
        print(json.dumps(measure(Path(made), gigabytes=options.gigabytes, runs=options.runs), indent=2))


def measure(folder: Path, *, gigabytes: float, runs: int) -> dict[str, object]:
    checkpoint = folder / "workspace" / "output" / "v1"
    write_checkpoint(checkpoint, size=int(gigabytes * 1e9))
    ways: dict[str, Callable[[Path], None]] = {
        "plain": lambda target: copy_all(checkpoint, target, plain),
        "hashed": lambda target: copy_all(checkpoint, target, hashed),
        "snapshot": lambda target: snapshot(folder / "workspace", target),
    }
    for way in ways.values():  # once unmeasured, so that all begin with a warm cache
        way(fresh(folder))
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    with PeakMemory() as memory:
        for _ in range(runs):
            for name, way in ways.items():
                seconds[name].append(timed(way, fresh(folder)))
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    return {
        "gigabytes": gigabytes,
        "files": FILES,
        "block_bytes": BLOCK,
        "runs": runs,
        "median_s": medians,
        "all_s": {name: [round(value, 3) for value in values] for name, values in seconds.items()},
        "hashed_over_plain": round(medians["hashed"] / medians["plain"], 2),
        "hashed_s_per_gb": round(medians["hashed"] / gigabytes, 3),
        "fsync_and_checks_s": round(medians["snapshot"] - medians["hashed"], 3),
        "peak_anonymous_mb": round(memory.peak / 1e6, 1),
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
    }


def write_checkpoint(folder: Path, *, size: int) -> None:
    """A sharded checkpoint of random bytes with true headers and an index."""
    folder.mkdir(parents=True)
    each = size // FILES
    index: dict[str, str] = {}
    for number in range(FILES):
        name = f"model-{number + 1:05}-of-{FILES:05}.safetensors"
        tensor = f"layer.{number}.weight"
        index[tensor] = name
        header = json.dumps({tensor: {"dtype": "U8", "shape": [each], "data_offsets": [0, each]}}).encode()
        with (folder / name).open("wb") as file:
            file.write(struct.pack("<Q", len(header)) + header)
            left = each
            while left:
                left -= file.write(os.urandom(min(left, 8 << 20)))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}), "utf-8")


def fresh(folder: Path) -> Path:
    """An empty place to copy to, with nothing of the copy before left to be written out."""
    target = folder / "submissions"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    os.sync()
    return target


def timed(way: Callable[[Path], None], target: Path) -> float:
    begun = time.perf_counter()
    way(target)
    return time.perf_counter() - begun


def copy_all(source: Path, target: Path, copy: Callable[[int, int, int], None]) -> None:
    for path in sorted(source.iterdir()):
        reading = os.open(path, os.O_RDONLY)
        writing = os.open(target / path.name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        copy(reading, writing, path.stat().st_size)
        os.close(reading)
        os.close(writing)


def plain(source: int, target: int, size: int) -> None:
    del size
    buffer = memoryview(bytearray(BLOCK))
    while count := os.readv(source, [buffer]):
        os.write(target, buffer[:count])


def hashed(source: int, target: int, size: int) -> None:
    copy_hashed(source, target, size=size)


def snapshot(workspace: Path, target: Path) -> None:
    take_snapshot(workspace, "output/v1", target / "1", limits=SnapshotLimits(weight_bytes=1 << 40))


class PeakMemory:
    """The most anonymous memory that this process held, looked at every 5 ms."""

    def __init__(self) -> None:
        self.peak = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.005):
            status = Path("/proc/self/status").read_text("ascii")
            line = next(line for line in status.splitlines() if line.startswith("RssAnon:"))
            self.peak = max(self.peak, int(line.split()[1]) * 1024)


if __name__ == "__main__":
    main()
