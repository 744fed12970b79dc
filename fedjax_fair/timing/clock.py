"""Virtual time in whole milliseconds, which stays exact for as long as a run lasts.

Seconds in float32 would confuse the order of events: with 50 tasks of about 20 s each, 3 % of the
positions are wrong after a day, 59 % after four months.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Int

__all__ = ["NEVER", "Clock"]

NEVER = 2**31 - 1
"""Milliseconds that no task takes, 24.8 days."""

_SECOND = 1000


class Clock(NamedTuple):
    """A time, or times, up to 68 years.

    Attributes:
        seconds: Whole seconds.
        milliseconds: The rest, from 0 to 999.

    Examples:
        >>> start = Clock(np.int32(3), np.int32(700))
        >>> start.advance(np.int32(1400)).as_seconds().item()
        5.1
    """

    seconds: Int[Array, "..."]
    milliseconds: Int[Array, "..."]

    def advance(self, elapsed: Int[Array, "..."]) -> Clock:
        """Returns the time some milliseconds later."""
        total = self.milliseconds + elapsed % _SECOND
        seconds = self.seconds + elapsed // _SECOND + total // _SECOND
        return Clock(seconds, total % _SECOND)

    def as_seconds(self) -> np.ndarray:
        """Returns seconds in float64, on the host."""
        rest = np.asarray(self.milliseconds) / _SECOND
        return np.asarray(np.asarray(self.seconds, np.float64) + rest)
