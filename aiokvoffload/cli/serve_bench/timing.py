"""Repeats what is measured. Knows medians and patience, not what it is."""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from statistics import median
from typing import Generic, TypeVar

T = TypeVar("T")

SHORT_S, MOST_TIMES = 0.5, 11
"""Launched from Python, a step of 30 ms takes 45 as often as not: what is over sooner is measured up to so often."""


@dataclass(frozen=True, slots=True)
class Repeater(Generic[T]):
    """Measures as often as is wanted, and once at least; more often what takes little and so varies most.

    Attributes:
        times: measurements that are wanted.
        patience_s: after so many seconds no further one is begun.
        clock: seconds.
    """

    times: int
    patience_s: float
    clock: Callable[[], float] = time.perf_counter

    async def all(self, measure: Callable[[], Awaitable[T]]) -> list[T]:
        """Every measurement."""
        began_s, found = self.clock(), [await measure()]
        while self._wants_more(len(found), self.clock() - began_s):
            found.append(await measure())
        return found

    def _wants_more(self, count: int, seconds: float) -> bool:
        if count < self.times:
            return seconds < self.patience_s
        return self.times > 1 and count < MOST_TIMES and seconds < SHORT_S

    def once_less(self) -> "Repeater[T]":
        """For a figure that another measurement belongs to."""
        return Repeater(self.times - 1, self.patience_s, self.clock)


def median_ms(seconds: list[float]) -> float:
    """The median, in milliseconds."""
    return median(seconds) * 1e3
