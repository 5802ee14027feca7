"""Evaluator `code`: does the program that a text contains pass the task's tests?

Every program runs in a process of its own that sees no test, no network and no file of the host; the
tests run here and get literals back (see code_guest, code_host).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from queue import SimpleQueue
from typing import Any

from pydantic import Field

from posttrain.core.evaluation import ScoringJob
from posttrain.core.frozen import Frozen
from posttrain.core.scores import Evaluation, Item, Output
from posttrain.evaluators.aggregate import Judgement, evaluation
from posttrain.evaluators.code_forms import read_program
from posttrain.evaluators.code_host import CodeLimits, Tests, make_view, run_tests
from posttrain.infra.processes import Spawner
from posttrain.infra.sandbox import View


class CodeSettings(Frozen):
    """`evaluator_settings` of a task that uses `code`. Rows have the fields `answer` (gold), `test`, and
    may have `prefix` (the start of the function that the prompt shows), `entry_point` and `setup`."""

    limits: CodeLimits = CodeLimits()
    workers: int | None = Field(default=None, ge=1)
    """Programs at a time; one a processor if not given."""


class CodeEvaluator:
    """Runs all programs of a job, several at a time."""

    def __init__(self, job: ScoringJob) -> None:
        self._job = job
        self._settings = CodeSettings.model_validate(job.settings)

    def evaluate(self, items: Sequence[Item], outputs: Sequence[Output]) -> Evaluation:
        workers = self._settings.workers or len(os.sched_getaffinity(0))
        views: SimpleQueue[View] = SimpleQueue()
        for slot in range(workers):
            views.put(make_view(f"{os.getpid()}-{slot}"))
        with ExitStack() as stack:
            spawner = stack.enter_context(Spawner())
            pool = stack.enter_context(ThreadPoolExecutor(workers))
            asked = [
                pool.submit(self._judge, items[index // self._job.samples], output, spawner, views)
                for index, output in enumerate(outputs)
            ]
            judgements = [future.result() for future in asked]
        return evaluation(items, outputs, judgements, metric=self._job.metric, macro=self._job.macro)

    def gold(self, item: Item) -> str:
        return str(item.fields["answer"])

    def _judge(self, item: Item, output: Output, spawner: Spawner, views: SimpleQueue[View]) -> Judgement:
        row = item.fields
        prefix, entry_point = str(row.get("prefix") or ""), row.get("entry_point") or None
        program = read_program(output.text, prefix=prefix, entry_point=entry_point)
        if program is None:
            return Judgement(value=0.0, reason="no program: nothing that was written compiles")
        view = views.get()
        try:
            fault = run_tests(
                program.code,
                _tests(row, prefix),
                limits=self._settings.limits,
                spawner=spawner,
                view=view,
            )
        finally:
            views.put(view)
        return Judgement(value=float(fault is None), extracted=program.code, rule=program.form, reason=fault)


def _tests(row: Mapping[str, Any], prefix: str) -> Tests:
    """The row's tests; one that defines `check` is called with the entry point."""
    code = str(row["test"])
    if "def check(" in code and row.get("entry_point"):
        code += f"\n\ncheck({row['entry_point']})\n"
    gold = f"{prefix}{row['answer']}"
    return Tests(code=code, helpers=_helpers(prefix), setup=str(row.get("setup") or ""), gold=gold)


def _helpers(prefix: str) -> str:
    """What the prompt shows before the function's head: tests may call it."""
    lines = prefix.rstrip().split("\n")
    heads = [index for index, line in enumerate(lines) if line.startswith(("def ", "async def "))]
    return "\n".join(lines[: heads[-1]]) if heads else ""
