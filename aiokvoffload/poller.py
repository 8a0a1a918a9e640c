"""Events become results: asks the device what has ended and says so, on the thread that owns the jobs.

Knows one queue of jobs per stream and queries only its head, since a stream ends its work in order. Knows nothing of
what a job is, beyond the event at its end. The same `poll` serves both ways to run: here the loop calls it, in stepped
mode the engine's thread does.
"""

import asyncio
import logging
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np

from aiokvoffload.base import Event
from aiokvoffload.device.base import Device

logger = logging.getLogger(__name__)

EAGER_POLLS = 16
"""Turns of the loop that are polled at once after something changed, before the poller sleeps between polls."""
ANNOUNCED_PER_TURN = 4
"""What follows an announcement may take a tenth of a millisecond, and many jobs may have ended at once (I10)."""
PAUSE_S = 0.001
"""uvloop rounds timers to whole milliseconds, and asyncio's epoll rounds up to one."""
LAG_SAMPLES = 4096


class Tracked(Protocol):
    """What the poller needs of a job."""

    @property
    def end(self) -> Event | None:
        """The event after the job's last copy."""
        ...


JobT = TypeVar("JobT", bound=Tracked)


@dataclass(frozen=True, slots=True)
class LagStatistics:
    """How long after its event a job was announced, in seconds, over the latest samples."""

    samples: int
    p50_s: float
    p99_s: float
    max_s: float


@dataclass(frozen=True, slots=True)
class PollerStatistics:
    """What a poller did: rounds of queries, jobs announced, and the lag from a job's event to its announcement."""

    polls: int
    announced: int
    lag: LagStatistics


class LagRecorder:
    """The latest `LAG_SAMPLES` lags, in a ring."""

    __slots__ = ("_count", "_ring")

    def __init__(self) -> None:
        self._ring = np.zeros(LAG_SAMPLES)
        self._count = 0

    def add(self, lag_s: float) -> None:
        """Keep one sample, in seconds."""
        self._ring[self._count % LAG_SAMPLES] = lag_s
        self._count += 1

    def statistics(self) -> LagStatistics:
        """Percentiles of what is kept."""
        kept = self._ring[: min(self._count, LAG_SAMPLES)]
        if not len(kept):
            return LagStatistics(0, 0.0, 0.0, 0.0)
        p50_s, p99_s = np.percentile(kept, (50, 99))
        return LagStatistics(len(kept), float(p50_s), float(p99_s), float(kept.max()))


class Poller(Generic[JobT]):
    """Asks for completions and announces them.

    Args:
        device: whose events they are.
        num_queues: how many streams there are.
        on_ended: called with each job whose event has completed, on the polling thread.
        on_broken: called when the device refuses to answer; the jobs left will never be announced.
    """

    def __init__(
        self,
        device: Device,
        num_queues: int,
        *,
        on_ended: Callable[[JobT], None],
        on_broken: Callable[[Exception], None],
    ) -> None:
        self._device = device
        self._queues: tuple[deque[JobT], ...] = tuple(deque() for _ in range(num_queues))
        self._on_ended, self._on_broken = on_ended, on_broken
        self._lag = LagRecorder()
        self._polls = self._announced = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._turn_pending: asyncio.Handle | None = None
        self._eager_polls = EAGER_POLLS

    def track(self, queue: int, job: JobT) -> None:
        """Watch `job`, enqueued last on the stream of `queue`."""
        self._queues[queue].append(job)
        if self._turn_pending is None:
            self._eager_polls = EAGER_POLLS
            self._plan_turn()

    def poll(self, limit: int = sys.maxsize) -> int:
        """Announce the jobs that have ended, at most `limit` of them; returns how many."""
        self._polls += 1
        announced = 0
        try:
            for queue in self._queues:
                announced += self._poll_queue(queue, limit - announced)
        except Exception as error:  # noqa: BLE001 - whatever it is, nobody may wait for an answer that cannot come
            self._break(error)
        self._announced += announced
        return announced

    def _poll_queue(self, queue: deque[JobT], limit: int) -> int:
        announced = 0
        while announced < limit and queue and (end := queue[0].end) is not None and self._device.query(end):
            job = queue.popleft()
            announced += 1
            self._note_lag(end)
            try:
                self._on_ended(job)
            except Exception:  # one job's trouble must not stop the others' results (faults 23, 27)
                logger.exception("announcing the end of %r failed", job)
        return announced

    def _note_lag(self, end: Event) -> None:
        try:
            self._lag.add(max(0.0, time.perf_counter() - self._device.completed_at(end)))
        except Exception:  # a figure must never cost a result (fault 52)
            logger.debug("the lag of %r is not known", end, exc_info=True)

    def _break(self, error: Exception) -> None:
        for queue in self._queues:
            queue.clear()
        self._on_broken(error)

    def start(self) -> None:
        """Poll on the running loop until `stop`, whenever there is something to ask for.

        By handles and not in a task, since whoever cancels all tasks of a loop would cancel it too, while the copies
        that others wait for go on (I1, I2).
        """
        self._loop = asyncio.get_running_loop()
        self._plan_turn()

    def stop(self) -> None:
        """Poll no more by itself."""
        self._loop = None
        if self._turn_pending is not None:
            self._turn_pending.cancel()
            self._turn_pending = None

    def _turn(self) -> None:
        try:
            self._eager_polls = EAGER_POLLS if self.poll(ANNOUNCED_PER_TURN) else self._eager_polls - 1
        finally:  # an interrupt raised here ends this run of the loop; another run of it goes on
            self._plan_turn()

    def _plan_turn(self) -> None:
        if self._loop is None or not any(self._queues):
            self._turn_pending = None
        elif self._eager_polls > 0:
            self._turn_pending = self._loop.call_soon(self._turn)
        else:
            self._turn_pending = self._loop.call_later(PAUSE_S, self._turn)

    def statistics(self) -> PollerStatistics:
        """A frozen record of counts and lags."""
        return PollerStatistics(self._polls, self._announced, self._lag.statistics())

    def __repr__(self) -> str:
        return f"Poller({[len(queue) for queue in self._queues]} in flight, {self._announced} announced)"
