"""How fast and in how much memory a submission is compared with its base: 1 GB against 1 GB.

    python benchmarks/provenance.py [--gigabytes 1.0] [--siblings 0] [--repeats 3] [--folder DIR]

Writes two random bf16 models (and siblings), compares them as a grading does, in a process of its own,
and prints JSON: seconds a GB of submission, and the largest anonymous memory of that process. Exit code 1
over 2.5 s a GB or 300 MB without siblings.
"""

from __future__ import annotations

import argparse
import json
import struct
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import psutil

from posttrain.checkpoints.comparing import Compared, compare_folders
from posttrain.infra.processes import Spawner

LIMIT_S_PER_GB, LIMIT_MB = 2.5, 300
WIDTH = 2048
SQUARES = 8


def write_model(folder: Path, *, gigabytes: float, seed: int, noise_of: Path | None = None) -> Path:
    """A folder of random bf16 matrices; with `noise_of`, that folder's bits with noise in the lowest."""
    folder.mkdir(parents=True)
    layers = max(1, round(gigabytes * 1e9 / (SQUARES * WIDTH * WIDTH * 2)))
    others = [f"model.layers.{layer}.w{k}.weight" for layer in range(layers) for k in range(SQUARES)]
    names = ["model.embed_tokens.weight", *others[1:]]
    size = WIDTH * WIDTH * 2
    entries = {
        name: {"dtype": "BF16", "shape": [WIDTH, WIDTH], "data_offsets": [k * size, (k + 1) * size]}
        for k, name in enumerate(names)
    }
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8)
    source = np.random.default_rng(seed)
    old = None
    if noise_of is not None:
        old = np.memmap(noise_of / "model.safetensors", np.uint16, "r", offset=8 + len(header))
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        for k in range(len(names)):
            if old is None:
                values = (source.standard_normal(size // 2, np.float32) * 0.02).view(np.uint32)
                bits = (values >> 16).astype(np.uint16)
            else:
                part = old[k * size // 2 : (k + 1) * size // 2]
                bits = part ^ source.integers(0, 4, size // 2, dtype=np.uint16)
            file.write(bits.tobytes())
    (folder / "config.json").write_text(json.dumps({"model_type": "bench", "tie_word_embeddings": True}))
    return folder


class Watch(threading.Thread):
    """The largest anonymous memory of the comparing process, looked at every few milliseconds."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak_mb = 0.0
        self.cpu_s = 0.0
        self.stopping = threading.Event()
        self.process: psutil.Process | None = None

    def run(self) -> None:
        while not self.stopping.wait(0.02):
            try:
                self.look()
            except (OSError, psutil.Error):
                self.process = None

    def look(self) -> None:
        if self.process is None:
            # once: to look through all processes all the time would take what is to be measured
            for process in psutil.Process().children(recursive=True):
                if "compare_worker" in " ".join(process.cmdline()) and "python" in process.name():
                    self.process = process
        if self.process is not None:
            for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
                if line.startswith("RssAnon:"):
                    self.peak_mb = max(self.peak_mb, int(line.split()[1]) / 1024)
            times = self.process.cpu_times()
            self.cpu_s = times.user + times.system


def measure(folder: Path, base: Path, siblings: dict[str, Path], log: Path) -> tuple[float, Watch, Compared]:
    watch = Watch()
    watch.start()
    with Spawner() as spawner:
        begun = time.perf_counter()
        found = compare_folders(folder, base, spawner=spawner, log=log, siblings=siblings)
        seconds = time.perf_counter() - begun
    watch.stopping.set()
    watch.join()
    return seconds, watch, found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--siblings", type=int, default=0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--folder", type=Path, default=None, help="where the models are written (a temporary place)"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as place:
        root = Path(place)
        base = write_model(root / "base", gigabytes=options.gigabytes, seed=0)
        tuned = write_model(root / "tuned", gigabytes=options.gigabytes, seed=1, noise_of=base)
        siblings = {
            f"sibling-{k}": write_model(
                root / f"s{k}", gigabytes=options.gigabytes, seed=2 + k, noise_of=base
            )
            for k in range(options.siblings)
        }
        bytes_ = (tuned / "model.safetensors").stat().st_size
        runs = [measure(tuned, base, siblings, root / "log") for _ in range(options.repeats)]
    seconds = [round(run[0], 3) for run in runs]
    result = {
        "bytes_base": bytes_,
        "bytes_submission": bytes_,
        "siblings": options.siblings,
        "seconds": seconds,
        "processor_s": [round(run[1].cpu_s, 2) for run in runs],
        "best_s_per_gb": round(min(seconds) / (bytes_ / 1e9), 3),
        "worst_s_per_gb": round(max(seconds) / (bytes_ / 1e9), 3),
        "peak_anonymous_mb": round(max(run[1].peak_mb for run in runs), 1),
        "provenance": runs[0][2].provenance.model_dump(mode="json"),
    }
    print(json.dumps(result, indent=2))
    if options.siblings:
        return 0
    return int(result["best_s_per_gb"] > LIMIT_S_PER_GB or result["peak_anonymous_mb"] > LIMIT_MB)


if __name__ == "__main__":
    sys.exit(main())
