"""Supervised fine-tuning on data/train.jsonl with the pinned prompt, fitted to the time that is left.

Hands in after a third of the time and at the end; begins again more cautiously if the first grade
shows a collapse. What is tuned stands in config.yaml.
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
    assignment = Assignment.of(os.environ)
    torch.manual_seed(assignment.seed)
    transformers_logging.disable_progress_bar()
    recipe = Recipe(assignment, log=log)
    settings = recipe.settings()
    log(f"learning rate {settings.learning_rate:g}")
    size = recipe.fitting_batch(settings)
    accepted = recipe.train(settings, size=size, epochs=recipe.epochs, desk=recipe.desk())
    recipe.tell(accepted)
    return 0 if accepted else 1


if __name__ == "__main__":
    run_program(main)
