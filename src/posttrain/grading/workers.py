"""One grading: an engine worker answers, a scorer judges, and a clock stands beside both."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from posttrain.checkpoints.assembly import complete_checkpoint
from posttrain.checkpoints.comparing import compare_folders
from posttrain.checkpoints.provenance import refuse_siblings
from posttrain.core.engine import Progress
from posttrain.core.errors import DeviceBusy, GradingTimeout, InfrastructureError, Unloadable
from posttrain.core.evaluation import ScoringJob
from posttrain.core.grading import Assessment, LoadReport, Provenance
from posttrain.core.paths import GradingFolder, RunPaths
from posttrain.core.scores import Evaluation, Output
from posttrain.engines.client import EngineWorker
from posttrain.evaluators.client import Scorer, score
from posttrain.evaluators.own import form_of
from posttrain.evaluators.selfcheck import scoring_job
from posttrain.evaluators.stock import OWN
from posttrain.grading.adapting import Adapter, Tool
from posttrain.grading.asking import Asking
from posttrain.grading.exam import Exam, keep_items
from posttrain.grading.views import WorkerViews
from posttrain.grading.warm import IDLE_S, Seat, WarmEngine
from posttrain.infra.processes import KillMode, Spawner
from posttrain.infra.sandbox import View

OnFault = Callable[[str], None]
SAVE_AS_BASE = (
    "Save it with save_pretrained from a model of the base's own class, with the base's tensor names."
)
_OPEN = WorkerViews()


class Assessor:
    """Grades checkpoints on one split, one at a time.

    Each has a scorer of its own, and an engine worker of its own unless there is a `shelf`: then one worker
    stays, and takes checkpoint after checkpoint. Such an assessor is a context manager or ended by `cancel`.
    """

    def __init__(
        self,
        exam: Exam,
        *,
        paths: RunPaths,
        timeout_s: float,
        kill_mode: KillMode,
        views: WorkerViews = _OPEN,
        baseline: Evaluation | None = None,
        siblings: Mapping[str, Path] | None = None,
        progress: Progress | None = None,
        shelf: Path | None = None,
        idle_s: float = IDLE_S,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`timeout_s` is the wall limit of one attempt, loading and scoring included.

        `shelf` is the folder below which all checkpoints lie; the worker that stays may read the whole of
        it. After `idle_s` without work it gives its memory back; `tell` hears when it is replaced.
        `siblings` are folders of other fine-tunes of the base, by name, that submissions are held against.
        `views` is what the processes see. `baseline` is what a copy of the base gets without being asked.
        """
        self._exam = exam
        self._paths = paths
        self._timeout_s = timeout_s
        self._kill_mode = kill_mode
        self._views = views
        self._baseline = baseline
        self._siblings = dict(siblings or {})
        self._progress = progress
        self._shelf = shelf
        self._idle_s, self._tell = idle_s, tell
        self._lock = threading.Lock()
        self._cancelled = False
        self._running: tuple[Spawner, threading.Event] | None = None
        self._engine: WarmEngine | None = None

    def assess(
        self, folder: Path | None, *, label: str, gpu: str | None = None, on_fault: OnFault | None = None
    ) -> Assessment:
        """Grade the checkpoint in `folder`, or the base itself. Logs and items go to grading/<label>/.

        When the lab fails there is one retry with the same settings; `on_fault` hears of the first
        failure. Memory that is not free is no failure of ours and not retried. Raises Rejected or
        Unloadable for the checkpoint's faults, InfrastructureError and PluginError for all others.
        """
        try:
            return self._attempt(folder, label=label, gpu=gpu)
        except DeviceBusy:
            raise
        except InfrastructureError as error:
            if self._cancelled:
                raise
            if on_fault is not None:
                on_fault(str(error))
        return self._attempt(folder, label=label, gpu=gpu)

    def cancel(self) -> None:
        """Kill what runs now and refuse to begin again; from any thread."""
        with self._lock:
            self._cancelled = True
            running, engine = self._running, self._engine
        if running is not None:
            self._stop(*running)
        if engine is not None:
            engine.close()

    def rest(self) -> None:
        """Let a worker that stays give its memory back; the next grading wakes it."""
        if self._engine is not None:
            self._engine.sleep()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()

    def _attempt(self, folder: Path | None, *, label: str, gpu: str | None) -> Assessment:
        begun = time.monotonic()
        logs = self._paths.grading_of(label)
        logs.mkdir(parents=True, exist_ok=True)
        with self._processes() as (spawner, stopped), self._scorer(logs, spawner) as scorer:
            answers = self._answers(folder, logs, spawner=spawner, gpu=gpu, stopped=stopped)
            evaluation = answers.evaluation
            if evaluation is None:
                assert scorer is not None
                evaluation = scorer.score(self._job(answers.outputs), timeout_s=self._timeout_s)
        keep_items(evaluation, answers.outputs, logs, samples=self._exam.generation.samples)
        return Assessment(
            split=self._exam.split,
            evaluation=_with_warnings(evaluation, answers.warnings),
            load=answers.load if folder is not None else None,
            generation_s=answers.generation_s,
            total_s=time.monotonic() - begun,
        )

    def _answers(
        self, folder: Path | None, logs: Path, *, spawner: Spawner, gpu: str | None, stopped: threading.Event
    ) -> _Answers:
        exam = self._exam
        provenance = self._provenance(folder, logs, spawner=spawner)
        with self._worker(folder, logs, gpu=gpu, stopped=stopped) as worker:
            load = worker.load(folder).model_copy(update={"provenance": provenance})
            if load.copy_of_base and folder is not None and self._baseline is not None:
                return _Answers(load=load, evaluation=self._baseline)
            if exam.tool is not None:
                return self._by_tool(exam.tool, worker, load, logs, spawner=spawner)
            if exam.task.evaluator == OWN:
                return self._own(worker, folder, load, logs, spawner=spawner, gpu=gpu)
            generated = worker.generate(
                exam.prompts, prompt=exam.prompt, generation=exam.generation, progress=self._progress
            )
        expected = len(exam.prompts) * exam.generation.samples
        if len(generated.outputs) != expected:
            raise InfrastructureError(f"the engine gave {len(generated.outputs)} of {expected} answers")
        return _Answers(
            load=load,
            outputs=generated.outputs,
            warnings=generated.warnings,
            generation_s=generated.generation_s,
        )

    @contextmanager
    def _worker(
        self, folder: Path | None, logs: Path, *, gpu: str | None, stopped: threading.Event
    ) -> Iterator[EngineWorker]:
        """The worker that stays, or one for this checkpoint alone. Its words lie in the grading's folder."""
        own, shared = GradingFolder(logs).engine_log, self._paths.warm_engine_log
        if self._shelf is None:
            seat = self._seat(self._views.engine(self._exam.base, folder), own)
            engine, log = WarmEngine(seat, keep=False), own
        else:
            self._shelf.mkdir(parents=True, exist_ok=True)
            self._shelf.chmod(0o755)  # whatever the umask: the worker runs as another user
            seat = self._seat(self._views.engine(self._exam.base, self._shelf), shared)
            engine = self._engine or WarmEngine(seat, keep=True, idle_s=self._idle_s, tell=self._tell)
            log = shared
        with self._lock:
            self._engine = engine
        with _excerpt(log, own), engine.lend(gpu=gpu, stopped=stopped) as worker:
            yield worker

    def _seat(self, view: View, log: Path) -> Seat:
        exam = self._exam
        return Seat(
            base=exam.base,
            numeric=exam.numeric,
            view=view,
            log=log,
            kill_mode=self._kill_mode,
            prompts=exam.prompts,
            prompt=exam.prompt,
        )

    def _provenance(self, folder: Path | None, logs: Path, *, spawner: Spawner) -> Provenance | None:
        """Where a checkpoint lies between its base and the siblings; Rejected for one that is a sibling."""
        if folder is None or not self._siblings:
            return None
        base = self._exam.base
        found = compare_folders(
            folder,
            base,
            spawner=spawner,
            log=GradingFolder(logs).compare_log,
            siblings=self._siblings,
            view=self._views.weights([base, folder, *self._siblings.values()]),
            timeout_s=self._timeout_s,
        )
        refuse_siblings(found.provenance)
        return found.provenance

    def _by_tool(
        self, tool: Tool, worker: EngineWorker, load: LoadReport, logs: Path, *, spawner: Spawner
    ) -> _Answers:
        """By a tool that asks the loaded checkpoint over HTTP."""
        exam = self._exam
        adapter = Adapter(
            task=exam.task,
            tool=tool,
            items=exam.items,
            prompt=exam.prompt,
            generation=exam.generation,
            timeout_s=self._timeout_s,
        )
        adapted = adapter.grade(worker, logs, spawner=spawner, views=self._views, progress=self._progress)
        return _Answers(
            load=load,
            outputs=adapted.outputs,
            evaluation=adapted.evaluation,
            warnings=adapted.warnings,
            generation_s=adapted.generation_s,
        )

    def _own(
        self,
        worker: EngineWorker,
        folder: Path | None,
        load: LoadReport,
        logs: Path,
        *,
        spawner: Spawner,
        gpu: str | None,
    ) -> _Answers:
        """By the task's own evaluator, which asks the loaded checkpoint, or loads it again itself."""
        exam = self._exam
        if form_of(exam.task.folder) == "evaluate":
            asking = Asking(
                worker,
                prompts=exam.prompts,
                prompt=exam.prompt,
                generation=exam.generation,
                progress=self._progress,
            )
            evaluation = self._judged(logs, spawner=spawner, asked=asking)
            return _Answers(
                load=load,
                evaluation=evaluation,
                warnings=asking.warnings,
                generation_s=asking.generation_s,
            )
        assert self._engine is not None
        self._engine.make_room()  # two models at a time may be one too many for the device
        if folder is None:
            return _Answers(load, evaluation=self._judged(logs, spawner=spawner, model=exam.base, gpu=gpu))
        if load.repairs:
            raise Unloadable(f"this task loads checkpoints as they are: {load.repairs[0]}", hint=SAVE_AS_BASE)
        with complete_checkpoint(exam.base, folder, logs / "model") as model:
            return _Answers(load, evaluation=self._judged(logs, spawner=spawner, model=model, gpu=gpu))

    def _scorer(self, logs: Path, spawner: Spawner) -> AbstractContextManager[Scorer | None]:
        """For our own evaluators: started first, so that it is there when the checkpoint has answered."""
        exam = self._exam
        if exam.tool is not None or exam.task.evaluator == OWN:
            return nullcontext()
        return Scorer(spawner, log=GradingFolder(logs).scorer_log, view=self._views.scorer(self._job(())))

    def _judged(
        self,
        logs: Path,
        *,
        spawner: Spawner,
        asked: Asking | None = None,
        model: Path | None = None,
        gpu: str | None = None,
    ) -> Evaluation:
        """What an evaluator of the task's own says, which asks or loads the checkpoint itself."""
        job = self._job((), model=model)
        return score(
            job,
            spawner=spawner,
            log=GradingFolder(logs).scorer_log,
            timeout_s=self._timeout_s,
            view=self._views.scorer(job),
            asked=asked,
            gpu=gpu,
        )

    def _job(self, outputs: tuple[Output, ...], *, model: Path | None = None) -> ScoringJob:
        exam = self._exam
        return scoring_job(exam.task, exam.items, outputs).model_copy(
            update={"samples": exam.generation.samples, "model": None if model is None else str(model)}
        )

    @contextmanager
    def _processes(self) -> Iterator[tuple[Spawner, threading.Event]]:
        """Where an attempt's children come from, and the sign that it is over.

        Time over or a cancel sets the sign and ends all children, the engine worker as well.
        """
        expired, stopped = threading.Event(), threading.Event()
        with Spawner(kill_mode=self._kill_mode) as spawner:

            def expire() -> None:
                expired.set()
                self._stop(spawner, stopped)

            timer = threading.Timer(self._timeout_s, expire)
            timer.daemon = True
            with self._lock:
                if self._cancelled:
                    raise InfrastructureError("gradings were cancelled")
                self._running = spawner, stopped
            timer.start()
            try:
                yield spawner, stopped
            except InfrastructureError as error:
                if expired.is_set():
                    raise GradingTimeout(f"grading took longer than {self._timeout_s:.0f} s") from error
                raise
            finally:
                timer.cancel()
                with self._lock:
                    self._running = None

    def _stop(self, spawner: Spawner, stopped: threading.Event) -> None:
        """End an attempt from another thread."""
        stopped.set()
        spawner.close(grace_s=0.0)
        with self._lock:
            engine = self._engine
        if engine is not None:
            engine.kill()


@contextmanager
def _excerpt(log: Path, own: Path) -> Iterator[None]:
    """What is appended to `log` meanwhile is put into `own` as well."""
    own.touch()
    before = log.stat().st_size if log.exists() else 0
    try:
        yield
    finally:
        if log != own:
            with suppress(OSError), log.open("rb") as whole, own.open("ab") as part:
                whole.seek(before)
                shutil.copyfileobj(whole, part)


@dataclass(frozen=True)
class _Answers:
    """What the engine gave; instead of texts the evaluation of a copy of the base, or of a task's own."""

    load: LoadReport
    outputs: tuple[Output, ...] = ()
    warnings: tuple[str, ...] = ()
    generation_s: float = 0.0
    evaluation: Evaluation | None = None


def _with_warnings(evaluation: Evaluation, warnings: tuple[str, ...]) -> Evaluation:
    """What the engine had to say about its answers stands with the score."""
    if not warnings:
        return evaluation
    score = evaluation.score.model_copy(update={"warnings": (*evaluation.score.warnings, *warnings)})
    return evaluation.model_copy(update={"score": score})
