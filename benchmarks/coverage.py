"""How often the interval of an improvement holds the true improvement, by simulation. JSON on stdout.

    python benchmarks/coverage.py [--draws 10000] [--seed 0]

Each of nine settings draws paired right/wrong items: of n items a share turns from wrong to right and a
share from right to wrong. The true improvement is the difference of the two shares.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from dataclasses import dataclass

from posttrain.core.statistics import bonett_price

FLOOR, CEILING = 93.0, 97.0
EXPECTED_CHANGES = 25
"""From this many expected changes in each direction on, over-coverage counts as a fault too."""


@dataclass(frozen=True)
class Setting:
    n: int
    gain_rate: float
    loss_rate: float

    @property
    def tight(self) -> bool:
        return self.n * min(self.gain_rate, self.loss_rate) >= EXPECTED_CHANGES


SETTINGS = [
    Setting(n, gain, loss)
    for n in (100, 500, 1319)
    for gain, loss in ((0.02, 0.01), (0.10, 0.06), (0.35, 0.08))
]


def discordant_counts(setting: Setting, rng: random.Random) -> tuple[int, int]:
    """Numbers of gained and lost items in one draw."""
    gained = lost = 0
    for _ in range(setting.n):
        point = rng.random()
        if point < setting.gain_rate:
            gained += 1
        elif point < setting.gain_rate + setting.loss_rate:
            lost += 1
    return gained, lost


def coverage(setting: Setting, *, draws: int, seed: int) -> float:
    """Percent of draws whose interval holds the true difference."""
    rng = random.Random(f"{seed}/{setting}")
    truth = setting.gain_rate - setting.loss_rate
    covered = 0
    for _ in range(draws):
        gained, lost = discordant_counts(setting, rng)
        low, high = bonett_price(gained, lost, setting.n)
        covered += low <= truth <= high
    return 100 * covered / draws


def acceptable(setting: Setting, percent: float) -> bool:
    return percent >= FLOOR and (percent <= CEILING or not setting.tight)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    rows = []
    for setting in SETTINGS:
        percent = coverage(setting, draws=given.draws, seed=given.seed)
        rows.append(
            {
                "n": setting.n,
                "gain_rate": setting.gain_rate,
                "loss_rate": setting.loss_rate,
                "expected_gained": round(setting.n * setting.gain_rate, 1),
                "expected_lost": round(setting.n * setting.loss_rate, 1),
                "coverage_percent": round(percent, 2),
                "ok": acceptable(setting, percent),
            }
        )
    passed = all(row["ok"] for row in rows)
    json.dump({"method": "bonett-price", "draws": given.draws, "settings": rows, "ok": passed}, sys.stdout)
    print()
    return 0 if passed else 1


if __name__ == "__main__":
    raise SystemExit(main())
