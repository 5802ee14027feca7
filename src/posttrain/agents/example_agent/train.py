"""GRPO with TRL, hyper-parameters and reward of AutoRL-Bench's example agent.

Each epoch starts from the checkpoint of the one before, is saved as output/checkpoint-epochN and
handed in. Unlike there, prompts are those of the grader, weights are fp32, a submission that fails is
not passed over, and the last checkpoint is not handed in twice.
"""

from __future__ import annotations

import os

# before torch starts: threads that spin would slow down the grader on the same cores many times
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from posttrain.core.engine import PinnedPrompt
from posttrain.engines.prompting import gold_text
from posttrain.prompting import Prompter
from posttrain.training.assignment import Assignment
from posttrain.training.budget import Budget, HandInCost
from posttrain.training.grpo import GrpoSettings, Watch, prompt_rows, subset, train_epoch
from posttrain.training.models import read_base
from posttrain.training.program import Log, run_program
from posttrain.training.rewards import answer_reward, random_reward


def main(log: Log) -> int:
    given = Assignment.of(os.environ)
    seed, server = given.seed, given.server
    budget = Budget(server.remaining_s())
    prompter = Prompter.of(given.workspace, given.model)
    pinned: PinnedPrompt = prompter.settings
    chosen = subset(given.rows(), ratio=given.number("TRAIN_RATIO", 0.1), seed=seed)
    rows = prompt_rows(
        chosen,
        prompter.render(chosen),
        prompter.tokenizer,
        gold=lambda row: gold_text(row, pinned.prompt),
    )
    # checkpoints hold fp32: twice the bytes of a bf16 base
    reserve_s = HandInCost(read_base(given.model).parameters * 4.0).reserve()
    watch = Watch(budget, reserve_s=reserve_s, log=log)
    reward = random_reward(seed) if given.text("REWARD", "answer") == "random" else answer_reward
    settings = GrpoSettings(
        max_steps=given.count("MAX_STEPS", 20),
        max_completion_length=min(256, pinned.generation.max_new_tokens),
    )
    log(f"{len(rows)} rows, {settings}")
    start, accepted = given.model, []
    for epoch in range(1, given.count("NUM_EPOCHS", 1) + 1):
        if budget.remaining() < reserve_s:
            break
        start = train_epoch(
            start,
            given.output / f"checkpoint-epoch{epoch}",
            rows=rows,
            reward=reward,
            settings=settings,
            stop_token_ids=pinned.stop_token_ids,
            seed=seed + epoch,
            scratch=given.workspace / "code" / "trl",
            watch=watch,
        )
        number = server.hand_in(start, note=f"GRPO, epoch {epoch}")
        log(f"{start.name} " + (f"is submission {number}" if number else "was not accepted"))
        accepted += [number] if number else []
    for number in accepted:
        grade = server.wait_for(number, until_s=3.0)
        if grade is not None:
            log(f"submission {number}: {grade['status']}, score {grade.get('score')}")
    return 0 if accepted else 1


if __name__ == "__main__":
    run_program(main)
