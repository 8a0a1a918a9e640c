"""How often what took how long: counts in fixed classes, so that adding one costs a search among a dozen bounds.

Knows numbers; knows nothing of what they are of.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

LATENCY_BOUNDS_S = (5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""From what is noticed at once to what nobody waits for, in seconds."""


@dataclass(frozen=True, slots=True)
class HistogramStatistics:
    """A snapshot.

    Attributes:
        bounds: upper ends of the classes, themselves included, rising.
        counts: values in each class, and last those beyond all bounds.
        total: the sum of all values.
    """

    bounds: tuple[float, ...] = ()
    counts: tuple[int, ...] = (0,)
    total: float = 0.0

    @property
    def count(self) -> int:
        """How many values there were."""
        return sum(self.counts)

    def quantile(self, share: float) -> float:
        """The bound below which at least this share of the values lies; infinite beyond the last, 0 without values."""
        wanted, seen = share * self.count, 0
        if not wanted:
            return 0.0
        for bound, count in zip(self.bounds, self.counts, strict=False):
            seen += count
            if seen >= wanted:
                return bound
        return float("inf")


NO_VALUES = HistogramStatistics()


class Histogram:
    """Values as they are counted.

    Args:
        bounds: upper ends of the classes, themselves included, rising.
    """

    __slots__ = ("_bounds", "_counts", "_total")

    def __init__(self, bounds: Sequence[float] = LATENCY_BOUNDS_S) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._total = 0.0

    def add(self, value: float) -> None:
        """Count one value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def statistics(self) -> HistogramStatistics:
        """A frozen record of counts."""
        return HistogramStatistics(self._bounds, tuple(self._counts), self._total)

    def __repr__(self) -> str:
        return f"Histogram({sum(self._counts)} values, sum {self._total:g})"
