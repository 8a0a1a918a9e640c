"""How long the loop was blocked, by whatever runs on it: how late a timer comes that rings at fixed intervals.

Knows the loop's timers and a histogram. It sees one moment in `PERIOD_S`, as somebody would who comes then; a long
blockage is seen for certain, a short one by chance.
"""

import asyncio
import time

from aiokvoffload.histogram import Histogram, HistogramStatistics

PERIOD_S = 0.05


class LoopWatch:
    """A timer of the running loop, from its making to `close`. A handle and no task: programs cancel all tasks."""

    __slots__ = ("_due_s", "_late_s", "_loop", "_timer")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._late_s = Histogram()
        self._set()

    def _set(self) -> None:
        self._due_s = time.monotonic() + PERIOD_S
        self._timer = self._loop.call_later(PERIOD_S, self._ring)

    def _ring(self) -> None:
        # Timers of both loops are rounded, and may come a little early.
        self._late_s.add(max(0.0, time.monotonic() - self._due_s))
        self._set()

    def close(self) -> None:
        """Look no more; repeating it does nothing."""
        self._timer.cancel()

    def statistics(self) -> HistogramStatistics:
        """Seconds that the timer was late by."""
        return self._late_s.statistics()

    def __repr__(self) -> str:
        return f"LoopWatch({self._late_s!r})"
