"""The numbers by which an experiment is watched; all of them in one place."""

from __future__ import annotations

from pydantic import Field

from posttrain.core.frozen import Frozen


class Policy(Frozen):
    """Defaults are for experiments of hours."""

    first_look_s: float = Field(default=30.0, gt=0)
    longest_look_s: float = Field(default=960.0, gt=0)
    """Looks are 30 s, 1, 2, 4, 8, 16 minutes apart; the command's end is noticed at once all the same."""
    stuck_after_s: float = Field(default=1800.0, gt=0)
    """Without output and without CPU or GPU use for this long is stuck."""
    grace_s: float = Field(default=10.0, ge=0)
    """Between SIGTERM and SIGKILL."""
    linger_s: float = Field(default=10.0, ge=0)
    """How long what the command left running may take to end by itself."""
    sample_s: float = Field(default=30.0, gt=0)
    """How often the wrapper looks at CPU use and writes its status."""
    max_repairs: int = Field(default=3, ge=0)
    plateau_share: float = Field(default=0.5, ge=0, le=1)
    """A plateau only counts when this share of the limit has passed."""
    plateau_points: int = Field(default=5, ge=2)
    start_within_s: float = Field(default=60.0, gt=0)
    """How long a session may take to start the wrapper."""
    service_within_s: float = Field(default=600.0, gt=0)
    """How long a service may take to get ready."""
    unreachable_after_s: float = Field(default=3600.0, gt=0)
    """A machine that cannot be reached for this long after the limit is given up."""

    def look_s(self, number: int) -> float:
        """Seconds before look `number` (0, 1, …)."""
        return min(self.longest_look_s, self.first_look_s * 2.0 ** min(number, 30))
