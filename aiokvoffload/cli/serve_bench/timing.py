"""Repeats what is measured. Knows medians and patience, not what it is."""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from statistics import median
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Repeater(Generic[T]):
    """Measures as often as is wanted, and once at least.

    Attributes:
        times: most measurements.
        patience_s: after so many seconds no further one is begun.
    """

    times: int
    patience_s: float

    async def all(self, measure: Callable[[], Awaitable[T]]) -> list[T]:
        """Every measurement."""
        began_s, found = time.perf_counter(), [await measure()]
        while len(found) < self.times and time.perf_counter() - began_s < self.patience_s:
            found.append(await measure())
        return found

    def once_less(self) -> "Repeater[T]":
        """For a figure that another measurement belongs to."""
        return Repeater(self.times - 1, self.patience_s)


def median_ms(seconds: list[float]) -> float:
    """The median, in milliseconds."""
    return median(seconds) * 1e3
