"""What `compose` makes of facts, the check agrees with: rounds of any length, order and outcome."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest

from posttrain.core.grading import Verdict
from posttrain.reports.summaries.check import check_summary
from posttrain.reports.summaries.compose import Draft, compose, next_round
from posttrain.reports.summaries.facts import Facts, Handed, Log
from posttrain.reports.summaries.script import Script
from posttrain.reports.summaries.text import parse
from posttrain.reports.summaries.unwritten import from_facts
from posttrain.reports.summary import Iteration, row, section, with_title

SCRIPT = """import torch


def train(model, loader):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for epoch in range(2):
        for batch in loader:
            loss = torch.nn.functional.cross_entropy(model(batch), batch["labels"])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        print(epoch, loss)


def main():
    train(make_model(), make_loader())


main()
"""
LOG = Log("agent.log", "Traceback\nRuntimeError: CUDA error: out of memory\n")
WHY = "scores.json and agent.log of the last round"


class Agent:
    """Rounds at random, each reported when it ends; `now` is the only clock."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.start = 1_780_000_000.0 + self.random.uniform(0, 86_400)
        self.now = self.start
        self.lower_is_better = self.random.random() < 0.2
        self.baseline = round(self.random.uniform(5, 90), 2)
        self.handed: list[Handed] = []
        self.markdown, self.rows = b"", b""
        self.written: float | None = None

    def facts(self) -> Facts:
        return Facts(
            handed=tuple(self.handed),
            start=self.start,
            timeout_s=7200.0,
            now=self.now,
            scripts=(Script("code/train.py", SCRIPT),),
            logs=(LOG,),
            logs_known=True,
        )

    def hand_in(self) -> None:
        choice = self.random.random()
        value = self.baseline if choice < 0.2 else round(self.random.uniform(0, 100), 4)
        gain = round(self.baseline - value if self.lower_is_better else value - self.baseline, 6)
        refused = choice > 0.8
        waited = self.random.uniform(0, 30)
        self.handed.append(
            Handed(
                number=len(self.handed) + 1,
                at=self.now,
                path=f"output/v{len(self.handed) + 1}",
                status=Verdict.UNLOADABLE if refused else Verdict.GRADED,
                score=None if refused else value,
                improvement=None if refused else gain,
                baseline=self.baseline,
                copy_of_base=not refused and gain == 0.0,
                error="no weights in the folder" if refused else None,
                waited=waited,
            )
        )
        self.now += waited

    def round(self) -> None:
        crashed = self.random.random() < 0.25
        for _ in range(0 if crashed else self.random.choice((0, 1, 1, 1, 3))):
            self.now += self.random.choice((0.5, 20.0, 400.0)) * self.random.random()
            self.hand_in()
        self.now += self.random.choice((0.2, 10.0, 300.0)) * self.random.random()
        draft = Draft(what="training", why=WHY, exit_code=1 if crashed else 0)
        document, facts = parse(self.markdown), self.facts()
        this = next_round(draft, document, facts, now=self.now, last_written=self.written)
        self.append(compose(draft, this, document, facts, lang="zh"))
        self.written = self.now

    def append(self, iteration: Iteration) -> None:
        self.markdown += with_title(self.markdown, section(iteration), lang="zh").encode()
        self.rows += json.dumps(row(iteration)).encode() + b"\n"


@pytest.mark.parametrize("seed", range(40))
def test_every_round_that_is_composed_passes_then_and_at_the_end(seed: int) -> None:
    agent = Agent(seed)
    for _ in range(agent.random.randint(1, 8)):
        agent.round()
        then = check_summary(agent.markdown, agent.rows, agent.facts())
        assert not then.findings, [f"{f.line} {f.rule} {f.message}" for f in then.findings]


@pytest.mark.parametrize("seed", range(20))
def test_a_summary_from_facts_alone_passes(seed: int) -> None:
    agent = Agent(1000 + seed)
    for _ in range(agent.random.randint(0, 5)):
        agent.now += agent.random.choice((0.5, 30.0, 900.0)) * agent.random.random()
        agent.hand_in()
    agent.now += 1.0
    for iteration in from_facts(agent.facts(), exit_code=agent.random.choice((0, 1, None))):
        agent.append(iteration)
    result = check_summary(agent.markdown, agent.rows, agent.facts())
    assert not result.findings, [f"{f.line} {f.rule} {f.message}" for f in result.findings]


def test_a_submission_before_a_start_that_was_rounded_up_belongs_to_the_first_round() -> None:
    agent = Agent(7)
    agent.now += 0.5
    agent.hand_in()
    facts = replace(agent.facts(), start=agent.handed[0].at + 0.3)
    this = next_round(Draft(what="training", why=WHY), parse(b""), facts, now=agent.now + 1.0)
    assert [entry.number for entry in this.own] == [1]


@pytest.mark.parametrize("handed_in", [False, True])
def test_only_a_round_that_came_to_nothing_may_not_know_its_train_type(handed_in: bool) -> None:
    agent = Agent(8)
    agent.hand_in()
    agent.now += 200.0
    agent.round()
    agent.now += 200.0
    if handed_in:
        agent.hand_in()
    agent.now += 200.0
    draft = Draft(what="no usable answer", why=WHY, exit_code=1)
    document, facts = parse(agent.markdown), agent.facts()
    this = next_round(draft, document, facts, now=agent.now, last_written=agent.written)
    agent.append(compose(draft, replace(this, scripts=()), document, facts, lang="zh"))
    found = [finding.rule for finding in check_summary(agent.markdown, agent.rows, agent.facts()).findings]
    assert ("3" in found) is handed_in
