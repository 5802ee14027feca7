"""What a tool asks, answered by an engine worker: a wave of questions in, outputs out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from posttrain.core.engine import Generated, Progress, Prompt, PromptSettings
from posttrain.core.errors import InfrastructureError
from posttrain.core.scores import Item, Output
from posttrain.core.specs import GenerationSettings
from posttrain.grading.endpoint import Question


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


class Waves:
    """Answers a wave by the worker, under the plan's prompt style, stops and limits."""

    def __init__(
        self,
        worker: Answering,
        *,
        prompt: PromptSettings,
        generation: GenerationSettings,
        expected: int,
        progress: Progress | None,
    ) -> None:
        """`expected` are the questions of all waves together."""
        self._worker = worker
        self._prompt = prompt
        self._generation = generation
        self._expected = expected
        self._progress = progress
        self._done = 0
        self.generation_s = 0.0
        self.warnings: tuple[str, ...] = ()

    def answer(self, questions: Sequence[Question]) -> Sequence[Output]:
        """One output a question; equal questions are asked once."""
        given: dict[Question, Output] = {}
        most = self._generation.max_new_tokens
        for limit in sorted({min(question.limit or most, most) for question in questions}):
            unique = list(dict.fromkeys(q for q in questions if min(q.limit or most, most) == limit))
            given |= zip(unique, self._outputs(unique, limit), strict=True)
        self._done += len(questions)
        return [given[question] for question in questions]

    def _outputs(self, questions: Sequence[Question], limit: int) -> Sequence[Output]:
        generated = self._worker.generate(
            [Prompt(id=question.id, turns=question.turns) for question in questions],
            prompt=self._prompt,
            generation=self._generation.model_copy(update={"max_new_tokens": limit}),
            progress=self._tell,
        )
        self.generation_s += generated.generation_s
        self.warnings = tuple(dict.fromkeys((*self.warnings, *generated.warnings)))
        if len(generated.outputs) != len(questions):
            raise InfrastructureError(f"the engine gave {len(generated.outputs)} of {len(questions)} answers")
        return generated.outputs

    def _tell(self, done: int, total: int) -> None:  # noqa: ARG002 - the whole is known better here
        if self._progress is not None:
            self._progress(min(self._done + done, self._expected), self._expected)


class Places:
    """Which item a question is about, so that batches are those of our own evaluators on the same prompts."""

    def __init__(self, items: Sequence[Item]) -> None:
        self._asked = [question_of(item) for item in items]

    def __call__(self, words: str) -> int:
        """The item's number; behind all items for words that are about none of them."""
        found = [number for number, asked in enumerate(self._asked) if asked and asked in words]
        return max(found, key=lambda number: len(self._asked[number]), default=len(self._asked))


def question_of(item: Item) -> str:
    """What an item asks, in the words of its row; empty where the row has no field of that name."""
    return str(item.fields.get("question", ""))
