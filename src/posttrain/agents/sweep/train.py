"""A sweep over the knobs of the recipe: short trials, then the best knobs for the rest of the time.

Learning rate, batch, weight decay and epochs are turned by Optuna. What a person with the recipe and no
idea would do; an agent that thinks should beat it. Goes on after an interruption with what it had learnt.
"""

from __future__ import annotations

import os

# before torch starts: threads that spin would slow down the grader on the same cores many times
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch
from transformers.utils import logging as transformers_logging

from posttrain.training.assignment import Assignment
from posttrain.training.program import Log, run_program
from posttrain.training.recipe import Recipe


def main(log: Log) -> int:
    # here: without optuna this is a line for people, not a traceback
    from posttrain.training.study import Knobs, Study
    from posttrain.training.sweep import Sweep, SweepSettings

    assignment = Assignment.of(os.environ)
    torch.manual_seed(assignment.seed)
    transformers_logging.disable_progress_bar()
    total_s = assignment.server.total_s()
    recipe = Recipe(assignment, log=log)
    sft = recipe.settings()
    size = recipe.fitting_batch(sft)
    study = Study(
        assignment.workspace / "code" / "sweep.jsonl",
        seed=assignment.seed,
        defaults=Knobs(epochs=max(1, round(recipe.epochs))),
    )
    settings = SweepSettings(
        sft=sft,
        size=size,
        rows=len(recipe.rows),
        step_s=recipe.step_s(size),
        total_s=total_s,
        last_share=assignment.number("LAST_SHARE", 0.4),
        most_trials=assignment.count("MOST_TRIALS", 16),
        least_steps=assignment.count("LEAST_STEPS", 12),
    )
    sweep = Sweep(recipe, study, recipe.desk(keep=False), settings=settings, log=log)
    accepted = sweep.run()
    recipe.tell(accepted)
    return 0 if accepted else 1


if __name__ == "__main__":
    run_program(main)
