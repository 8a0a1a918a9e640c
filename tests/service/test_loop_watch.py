import asyncio
from collections.abc import Callable

import pytest

from aiokvoffload.service import loop_watch
from aiokvoffload.service.loop_watch import PERIOD_S, LoopWatch


class ManualTimers:
    """A loop as far as the watch knows one, and the time."""

    def __init__(self) -> None:
        self.time_s = 0.0
        self.callbacks: list[Callable[[], None]] = []
        self.cancelled = 0

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> "ManualTimers":
        assert delay_s == PERIOD_S
        self.callbacks.append(callback)
        return self

    def cancel(self) -> None:
        self.cancelled += 1

    def monotonic(self) -> float:
        return self.time_s


async def test_a_timer_that_comes_late_counts_as_a_blocked_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    timers = ManualTimers()
    monkeypatch.setattr(loop_watch, "time", timers)
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: timers)
    watch = LoopWatch()
    for late_s in (0.0, 0.3, -0.001):
        timers.time_s += PERIOD_S + late_s
        timers.callbacks.pop()()
    watch.close()
    counted = watch.statistics()
    assert (counted.count, counted.quantile(0.5), counted.quantile(1.0)) == (3, 5e-5, 0.5)
    assert counted.total == pytest.approx(0.3)
    assert timers.cancelled == 1
