"""Exponential backoff as a pure value: how long to wait before a given try."""

import math
import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """`base * factor ** attempt`, at most `cap`, plus up to `jitter` of itself (all seconds).

    Never zero, never above `cap * (1 + jitter)`, never raises, whatever the attempt (source document of
    the retry job: BackoffBase·Factor^n, cap, jitter).
    """

    base: float
    cap: float
    factor: float = 2.0
    jitter: float = 0.1

    def delay(self, attempt: int, *, roll: float | None = None) -> float:
        """Seconds before try number `attempt` (0 is the first retry). `roll` in [0, 1) replaces the dice."""
        doublings_to_cap = math.log(self.cap / self.base, self.factor) if self.factor > 1 else 0.0
        if attempt >= doublings_to_cap and self.factor > 1:
            delay = self.cap  # computing the power first would overflow for a large attempt
        else:
            delay = min(self.cap, self.base * self.factor ** max(attempt, 0))
        dice = random.random() if roll is None else roll  # noqa: S311 (jitter, not a secret)
        return delay * (1 + self.jitter * dice)
