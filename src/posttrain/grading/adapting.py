"""A checkpoint graded by OpenCompass: the tool asks over HTTP, the engine worker answers by pipe.

The tool runs in the view of a scorer: its own environment and one folder, no network but a port that
leads to this evaluation's endpoint. It sees rows and texts, and no weights.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol

from posttrain.core.engine import Generated, Progress, Prompt, PromptSettings
from posttrain.core.errors import InfrastructureError, PluginError
from posttrain.core.scores import Evaluation, Item, ItemResult, Output
from posttrain.core.specs import GenerationSettings, TaskSpec
from posttrain.evaluators.aggregate import score_of, warnings_about
from posttrain.evaluators.opencompass import inputs, results
from posttrain.evaluators.opencompass.settings import (
    OpenCompassSettings,
    config_name,
    read_settings,
)
from posttrain.evaluators.selfcheck import SelfCheck
from posttrain.grading.endpoint import BY_ARRIVAL, Endpoint, Question, Served
from posttrain.grading.server import GradingServer, bind_tcp, bind_unix
from posttrain.grading.views import WorkerViews
from posttrain.infra.processes import Child, Command, Spawner
from posttrain.infra.sandbox import Relay, View
from posttrain.infra.tool_envs.environments import ToolEnv

WAVE = 128
"""Requests that the tool has open at a time; the relay carries as many."""
_PORT = 8000
"""On the tool's own loopback, where nothing else listens."""
_POLL_S = 0.2
_REHEARSED = 8
"""Items that a rehearsal asks."""
_TAIL = 600
_NO_ITEMS = "OpenCompass judged no single items here: the improvement has no interval"


@dataclass(frozen=True)
class Adapted:
    """What the tool came to, and what the engine said on the way."""

    evaluation: Evaluation
    outputs: tuple[Output, ...]
    generation_s: float
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class Tool:
    """OpenCompass as it is installed, and the rows that a task shows it beside the items."""

    env: ToolEnv
    package: Path
    """Its package folder."""
    exemplars: tuple[Mapping[str, Any], ...] = ()

    @property
    def version(self) -> str:
        """What a result depends on."""
        return self.env.packages.get("opencompass") or f"of {self.env.python}"


@dataclass(frozen=True)
class Adapter:
    """How one task is asked by OpenCompass, for every checkpoint alike."""

    task: TaskSpec
    tool: Tool
    items: tuple[Item, ...]
    prompt: PromptSettings
    generation: GenerationSettings
    timeout_s: float

    def grade(
        self,
        worker: Answering,
        logs: Path,
        *,
        spawner: Spawner,
        views: WorkerViews,
        progress: Progress | None,
    ) -> Adapted:
        """Let the tool ask the loaded checkpoint. InfrastructureError for a tool that fails, UnreadResult for
        files without the number; never a score made of anything else."""
        if self.generation.samples != 1:
            raise PluginError(f"{self.task.id}: generation.samples: OpenCompass counts one answer an item")
        work = logs / "opencompass"
        shutil.rmtree(work, ignore_errors=True)  # of an attempt that failed
        engine = _Engine(worker, self, progress)
        key = secrets.token_urlsafe(24)
        wave = min(WAVE, len(self.items))
        places = _Places(self.items)
        endpoint = Endpoint(
            engine.answer,
            expected=len(self.items),
            wave=wave,
            key=key,
            place=lambda question: places(question.turns[-1].content),
        )
        with ExitStack() as stack:
            door = stack.enter_context(_doorway(views))
            stack.enter_context(endpoint)
            stack.enter_context(GradingServer(endpoint, [door.listener], peer_uids=views.tool_peers()))
            self._prepare(work, inputs.Endpoint(f"http://127.0.0.1:{door.port}/v1", key), wave=wave)
            view = views.tool(self.tool.env.shown, work, door.relay)
            try:
                self._run(work, view, endpoint, spawner=spawner)
            except InfrastructureError:
                worker.stop()  # nobody is left to read what it writes
                raise
        evaluation, outputs = self._read(work, endpoint.served)
        arrival = (BY_ARRIVAL,) if endpoint.served.by_arrival else ()
        return Adapted(evaluation, outputs, engine.generation_s, (*engine.warnings, *arrival))

    def _prepare(self, work: Path, endpoint: inputs.Endpoint, *, wave: int) -> None:
        work.mkdir(parents=True)
        asked = inputs.Asked(
            dataset=inputs.find_config(self.tool.package, config_name(self.task.evaluator)),
            settings=self.settings,
            items=self.items,
            exemplars=self.tool.exemplars,
            endpoint=endpoint,
            wave=wave,
            max_new_tokens=self.generation.max_new_tokens,
            temperature=self.generation.temperature,
            timeout_s=self.timeout_s,
        )
        inputs.write_inputs(asked, work)

    def _run(self, work: Path, view: View, endpoint: Endpoint, *, spawner: Spawner) -> None:
        """Return when the tool has ended well."""
        log = work.parent / "opencompass.log"
        command = Command(
            argv=[
                *(str(self.tool.env.python), "-P", "-m", "opencompass.cli.main", str(work / "config.py")),
                *("--work-dir", str(work / "out"), "--debug"),  # one process instead of three
            ],
            cwd=work,
            env=_environment(work),
            stdout=log,
            stderr="stdout",
            view=view,
        )
        with spawner.spawn(command, name="opencompass") as child:
            _wait(child, endpoint)
            code = child.wait()
        if endpoint.failure is not None:
            raise endpoint.failure
        if code != 0:
            raise InfrastructureError(f"OpenCompass ended with {code}: {_tail(log)}")

    def _read(self, work: Path, served: Served) -> tuple[Evaluation, tuple[Output, ...]]:
        """The evaluation that the tool's files hold. Its texts must be ours, one an item."""
        run = results.newest_run(work / "out")
        subsets = self._subsets(run)
        read = results.read_results(run, subsets, metric=self.settings.metric)
        judged: dict[str, ItemResult] = {}
        outputs: dict[str, Output] = {}
        for subset, result in zip(subsets, read, strict=True):
            judged |= {item.id: each for item, each in zip(subset.items, result.results, strict=True)}
            _require_order(subset, result.predictions)
            for item, said in zip(subset.items, result.predictions, strict=True):
                outputs[item.id] = _ours(said, served)
        if [item.id for item in self.items if item.id not in judged]:
            raise InfrastructureError(f"OpenCompass judged {len(judged)} of {len(self.items)} items")
        ordered = tuple(
            judged[item.id].model_copy(update={"cut": outputs[item.id].cut}) for item in self.items
        )
        score = score_of(ordered, metric=self.task.metric, macro=self.task.macro)
        texts = tuple(outputs[item.id] for item in self.items)
        told = () if all(result.by_item for result in read) else (_NO_ITEMS,)
        cut, rules = sum(output.cut for output in texts) / len(texts), {results.RULE: len(texts)}
        full = score.model_copy(
            update={
                "cut_share": cut,
                "rules": rules,
                "warnings": (*score.warnings, *warnings_about(cut, rules), *told),
            }
        )
        return Evaluation(score=full, items=ordered), texts

    def _subsets(self, run: Path) -> list[results.Subset]:
        """The configuration's data sets, each with the items it was given."""
        named = results.configured(run)
        wanted = self.settings.subsets
        if not wanted:
            if len(named) != 1:
                raise PluginError(
                    f"{self.task.id}: evaluator_settings.subsets: the configuration has {len(named)} "
                    f"data sets: {', '.join(named[:8])}"
                )
            return [results.Subset(named[0], self.items)]
        if sorted(named) != sorted(wanted):
            raise PluginError(
                f"{self.task.id}: evaluator_settings.subsets names {', '.join(sorted(wanted))}, "
                f"the configuration has {', '.join(sorted(named))}"
            )
        return [
            results.Subset(abbr, tuple(item for item in self.items if item.stratum == stratum))
            for abbr, stratum in wanted.items()
        ]

    @property
    def settings(self) -> OpenCompassSettings:
        return read_settings(self.task.evaluator_settings, where=self.task.id)


class _Places:
    """Which item a question is about, so that batches are those of our own evaluators on the same prompts."""

    def __init__(self, items: Sequence[Item]) -> None:
        self._asked = [_question(item) for item in items]

    def __call__(self, words: str) -> int:
        """The item's number; behind all items for words that are about none of them."""
        found = [number for number, asked in enumerate(self._asked) if asked and asked in words]
        return max(found, key=lambda number: len(self._asked[number]), default=len(self._asked))


class Answering(Protocol):
    """What answers the tool's questions: an engine worker, or a rehearsal."""

    def generate(
        self,
        prompts: Sequence[Prompt],
        *,
        prompt: PromptSettings,
        generation: GenerationSettings,
        progress: Progress | None = None,
    ) -> Generated:
        """Answers in the order of the prompts."""
        ...

    def stop(self) -> None:
        """Give up what is being answered."""
        ...


class Rehearsal:
    """Answers with the gold answers of the items, or with nothing: does the tool judge as it should?"""

    def __init__(self, items: Sequence[Item], kind: Literal["gold", "empty"]) -> None:
        self._items = items
        self._kind = kind

    def generate(
        self,
        prompts: Sequence[Prompt],
        *,
        prompt: PromptSettings,  # noqa: ARG002
        generation: GenerationSettings,  # noqa: ARG002
        progress: Progress | None = None,  # noqa: ARG002
    ) -> Generated:
        texts = [self._gold(each) if self._kind == "gold" else "" for each in prompts]
        return Generated(outputs=tuple(Output(text=text, tokens=0) for text in texts), generation_s=0.0)

    def stop(self) -> None:
        """There is nothing to give up."""

    def _gold(self, prompt: Prompt) -> str:
        """The gold answer of the item whose question stands in the prompt's last turn."""
        asked = prompt.turns[-1].content
        known = (item for item in self._items if _question(item) and _question(item) in asked)
        found = max(known, key=lambda item: len(_question(item)), default=None)
        return "" if found is None else str(found.fields.get("answer", ""))


def _question(item: Item) -> str:
    return str(item.fields.get("question", ""))


def rehearse(adapter: Adapter, logs: Path, *, spawner: Spawner, views: WorkerViews) -> SelfCheck:
    """Let the tool judge gold answers and empty ones to a few items; PluginError unless gold is better."""
    few = replace(adapter, items=adapter.items[:_REHEARSED])
    scores: dict[str, float] = {}
    for kind in ("gold", "empty"):
        place = logs / kind
        place.mkdir(parents=True, exist_ok=True)
        given = few.grade(Rehearsal(few.items, kind), place, spawner=spawner, views=views, progress=None)
        scores[kind] = given.evaluation.score.value
    check = SelfCheck(gold=scores["gold"], empty=scores["empty"], n=len(few.items))
    if not adapter.task.metric.better(scores["gold"], scores["empty"]):
        raise PluginError(f"{adapter.task.id}: OpenCompass judges {check.told}")
    if 0.0 < scores["gold"] <= 1.0:
        raise PluginError(
            f"{adapter.task.id}: OpenCompass gives gold answers {scores['gold']:g}: "
            f"{adapter.settings.metric} is a share of 1, and a number from 0 to 100 is needed"
        )
    if (scores["gold"], scores["empty"]) == (100.0, 0.0):
        return check
    told = f"OpenCompass gives gold answers {scores['gold']:.1f} and empty ones {scores['empty']:.1f}"
    return check.model_copy(update={"warnings": (told,)})


class _Engine:
    """Answers a wave by the worker, under the plan's prompt style, stops and limits."""

    def __init__(self, worker: Answering, adapter: Adapter, progress: Progress | None) -> None:
        self._worker = worker
        self._adapter = adapter
        self._progress = progress
        self._done = 0
        self.generation_s = 0.0
        self.warnings: tuple[str, ...] = ()

    def answer(self, questions: Sequence[Question]) -> Sequence[Output]:
        """One output a question; equal questions are asked once."""
        given: dict[Question, Output] = {}
        most = self._adapter.generation.max_new_tokens
        for limit in sorted({min(question.limit or most, most) for question in questions}):
            unique = list(dict.fromkeys(q for q in questions if min(q.limit or most, most) == limit))
            given |= zip(unique, self._outputs(unique, limit), strict=True)
        self._done += len(questions)
        return [given[question] for question in questions]

    def _outputs(self, questions: Sequence[Question], limit: int) -> Sequence[Output]:
        generated = self._worker.generate(
            [Prompt(id=question.id, turns=question.turns) for question in questions],
            prompt=self._adapter.prompt,
            generation=self._adapter.generation.model_copy(update={"max_new_tokens": limit}),
            progress=self._tell,
        )
        self.generation_s += generated.generation_s
        self.warnings = tuple(dict.fromkeys((*self.warnings, *generated.warnings)))
        if len(generated.outputs) != len(questions):
            raise InfrastructureError(f"the engine gave {len(generated.outputs)} of {len(questions)} answers")
        return generated.outputs

    def _tell(self, done: int, total: int) -> None:  # noqa: ARG002 - the whole is known better here
        if self._progress is not None:
            whole = len(self._adapter.items)
            self._progress(min(self._done + done, whole), whole)


@dataclass(frozen=True)
class _Door:
    listener: socket.socket
    port: int
    """On the tool's own loopback."""
    relay: Relay | None


@contextmanager
def _doorway(views: WorkerViews) -> Iterator[_Door]:
    """Where the tool reaches the endpoint: through a relay, or by TCP where nothing is isolated."""
    if views.isolation == "none":
        listener, _ = bind_tcp(0, given=True)
        with listener:
            yield _Door(listener, int(listener.getsockname()[1]), None)
        return
    with tempfile.TemporaryDirectory(prefix="posttrain-") as folder:
        path = Path(folder) / "engine.sock"
        with bind_unix(path, mode=0o666) as listener:  # its folder is closed to all but us
            yield _Door(listener, _PORT, Relay(_PORT, path))


def _wait(child: Child, endpoint: Endpoint) -> None:
    """Return when the tool has ended, or the engine has failed."""
    while child.wait(_POLL_S) is None:
        if endpoint.failure is not None:
            child.stop(grace_s=0.0)


def _ours(said: results.Said, served: Served) -> Output:
    """The output that a prediction is; a text that our engine did not give to that question is none."""
    outputs = served.outputs.get(said.question, [])
    found = next((output for output in outputs if output.text == said.text), None)
    if found is None:
        raise results.UnreadResult("OpenCompass: a prediction is no answer of the engine to its question")
    return found


def _require_order(subset: results.Subset, predictions: Sequence[results.Said]) -> None:
    """A tool that shuffles its rows would have items judged by each other's answers."""
    places = _Places(subset.items)
    for number, (item, said) in enumerate(zip(subset.items, predictions, strict=True)):
        if _question(item) not in said.question and places(said.question) < len(subset.items):
            raise results.UnreadResult(
                f"OpenCompass: {subset.abbr}: prediction {number} is about another item than row {number}"
            )


def _environment(work: Path) -> dict[str, str]:
    """The whole environment of the tool: its data, and nothing to fetch from."""
    return {
        "PATH": os.defpath,
        "HOME": str(work),
        "LC_ALL": "C.UTF-8",
        "COMPASS_DATA_CACHE": str(work / "cache"),
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_WAIT_POLICY": "PASSIVE",
        "OMP_NUM_THREADS": "1",
        "MPLCONFIGDIR": str(work / "matplotlib"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def _tail(log: Path) -> str:
    try:
        return " ".join(log.read_bytes()[-_TAIL:].decode("utf-8", "replace").split())
    except OSError:
        return "it said nothing"
