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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posttrain.core.engine import Progress, PromptSettings
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
from posttrain.grading.endpoint import BY_ARRIVAL, Endpoint, Served
from posttrain.grading.server import GradingServer, bind_tcp, bind_unix
from posttrain.grading.views import WorkerViews
from posttrain.grading.waves import Answering, Places, Waves, question_of
from posttrain.infra.processes import Child, Command, Spawner
from posttrain.infra.sandbox import Relay, View
from posttrain.infra.tool_envs.environments import ToolEnv

WAVE = 128
"""Requests that the tool has open at a time; the relay carries as many."""
_PORT = 8000
"""On the tool's own loopback, where nothing else listens."""
_POLL_S = 0.2
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
        waves = Waves(
            worker,
            prompt=self.prompt,
            generation=self.generation,
            expected=len(self.items),
            progress=progress,
        )
        key, wave = secrets.token_urlsafe(24), min(WAVE, len(self.items))
        endpoint = self._endpoint(waves, key=key, wave=wave)
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
        return Adapted(evaluation, outputs, waves.generation_s, (*waves.warnings, *arrival))

    def _endpoint(self, waves: Waves, *, key: str, wave: int) -> Endpoint:
        places = Places(self.items)
        return Endpoint(
            waves.answer,
            expected=len(self.items),
            wave=wave,
            key=key,
            place=lambda question: places(question.turns[-1].content),
        )

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
    places = Places(subset.items)
    for number, (item, said) in enumerate(zip(subset.items, predictions, strict=True)):
        if question_of(item) not in said.question and places(said.question) < len(subset.items):
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
