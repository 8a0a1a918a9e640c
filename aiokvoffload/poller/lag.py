"""How late ends were noticed: the latest lags and their percentiles. Knows no device and no clock."""

from collections import deque
from dataclasses import dataclass

import numpy as np

from aiokvoffload.histogram import NO_VALUES, Histogram, HistogramStatistics

LAG_SAMPLES = 4096


@dataclass(frozen=True, slots=True)
class LagStatistics:
    """How long after its event a job was announced, in seconds, over the latest samples; `histogram` has them all."""

    samples: int
    p50_s: float
    p99_s: float
    max_s: float
    histogram: HistogramStatistics = NO_VALUES


class LagRecorder:
    """The latest `LAG_SAMPLES` lags, and how many there were of which length."""

    __slots__ = ("_histogram", "_latest_s")

    def __init__(self) -> None:
        self._latest_s: deque[float] = deque(maxlen=LAG_SAMPLES)
        self._histogram = Histogram()

    def add(self, lag_s: float) -> None:
        """Keep one sample, in seconds."""
        self._latest_s.append(lag_s)
        self._histogram.add(lag_s)

    def statistics(self) -> LagStatistics:
        """Percentiles of what is kept."""
        if not self._latest_s:
            return LagStatistics(0, 0.0, 0.0, 0.0, self._histogram.statistics())
        # Not `np.percentile`, whose first call imports for 10 ms, on whatever loop asked.
        ordered = np.sort(np.fromiter(self._latest_s, np.float64, len(self._latest_s)))
        p50_s, p99_s = (float(ordered[-(-len(ordered) * share // 100) - 1]) for share in (50, 99))
        return LagStatistics(len(ordered), p50_s, p99_s, float(ordered[-1]), self._histogram.statistics())

    def __repr__(self) -> str:
        return f"LagRecorder({len(self._latest_s)} lags)"
