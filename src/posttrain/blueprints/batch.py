"""Several blueprints: one after another, or side by side with one GPU each."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from posttrain.blueprints.documents import Documents
from posttrain.blueprints.execute import Executor
from posttrain.blueprints.paths import StatePaths
from posttrain.blueprints.setting import Setting
from posttrain.blueprints.state import experiment_name
from posttrain.blueprints.watch import Detached
from posttrain.core.errors import InfrastructureError, PosttrainError, boundary


@dataclass(frozen=True)
class Ran:
    """How one file ended: with documents, or with the error that kept it from running."""

    source: Path
    documents: Documents | None
    error: PosttrainError | None = None

    @property
    def exit_code(self) -> int:
        return self.documents.exit_code if self.documents else 2


def run_batch(
    sources: Sequence[Path],
    *,
    home: Path,
    setting: Setting,
    gpus: Sequence[str] = (),
    done: Callable[[Ran], None],
) -> list[Ran]:
    """Run all; `done` is told of each as it ends. Ends early when `setting.wake` is set."""
    waiting: queue.SimpleQueue[Path] = queue.SimpleQueue()
    for source in sources:
        waiting.put(source)
    ran: list[Ran] = []

    def work(gpu: str | None) -> None:
        while not setting.wake.is_set:
            try:
                source = waiting.get_nowait()
            except queue.Empty:
                return
            one = run_one(source, home=home, setting=replace(setting, gpu=gpu))
            if one is not None:
                ran.append(one)
                done(one)

    threads = [threading.Thread(target=work, args=(gpu,), name=f"gpu-{gpu}") for gpu in gpus or (None,)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(ran, key=lambda one: sources.index(one.source))


def run_one(source: Path, *, home: Path, setting: Setting) -> Ran | None:
    """One file to its end; None if the executor was asked to leave before that."""
    paths = StatePaths(home / experiment_name(source))
    try:
        with boundary(InfrastructureError, f"running {source}"):
            return Ran(source, Executor(source, paths=paths, setting=setting).run())
    except Detached:
        return None
    except PosttrainError as error:
        return Ran(source, None, error)
