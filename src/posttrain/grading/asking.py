"""How a task's own evaluator reaches the checkpoint: through its pipes to the engine worker's."""

from __future__ import annotations

from pydantic import ValidationError

from posttrain.core.engine import Progress, Prompt, PromptSettings
from posttrain.core.evaluation import EngineGiven, EngineWanted
from posttrain.core.specs import GenerationSettings
from posttrain.engines.client import EngineWorker


class Asking:
    """Answers what an evaluator asks, by one worker with a loaded checkpoint."""

    def __init__(
        self,
        worker: EngineWorker,
        *,
        prompts: tuple[Prompt, ...],
        prompt: PromptSettings,
        generation: GenerationSettings,
        progress: Progress | None = None,
    ) -> None:
        """`prompts` are the pinned ones, an item each."""
        self._worker = worker
        self._prompts = {each.id: each for each in prompts}
        self._prompt = prompt
        self._generation = generation
        self._progress = progress
        self.generation_s = 0.0
        self.warnings: tuple[str, ...] = ()

    def __call__(self, wanted: EngineWanted) -> EngineGiven:
        """The answers, or why there are none; raises what the worker raises when it fails."""
        unknown = [name for name in wanted.ids if name not in self._prompts]
        if unknown:
            return EngineGiven(error=f"{unknown[0]!r} is not one of the items")
        if wanted.turns is not None and len(wanted.turns) != len(wanted.ids):
            return EngineGiven(error=f"{len(wanted.turns)} conversations for {len(wanted.ids)} items")
        try:
            generation = self._merged(wanted)
        except ValidationError as error:
            fault = error.errors()[0]
            return EngineGiven(error=f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}")
        except ValueError as error:
            return EngineGiven(error=str(error))
        given = self._worker.generate(
            self._conversations(wanted),
            prompt=self._prompt,
            generation=generation,
            progress=self._progress,
        )
        self.generation_s += given.generation_s
        self.warnings = tuple(dict.fromkeys((*self.warnings, *given.warnings)))
        return EngineGiven(outputs=given.outputs)

    def _merged(self, wanted: EngineWanted) -> GenerationSettings:
        if "samples" in wanted.generation:  # results are counted by it
            raise ValueError("samples is for benchmark.yaml to say")
        return GenerationSettings.model_validate({**self._generation.model_dump(), **wanted.generation})

    def _conversations(self, wanted: EngineWanted) -> tuple[Prompt, ...]:
        if wanted.turns is None:
            return tuple(self._prompts[name] for name in wanted.ids)
        return tuple(
            Prompt(id=name, turns=turns) for name, turns in zip(wanted.ids, wanted.turns, strict=True)
        )
