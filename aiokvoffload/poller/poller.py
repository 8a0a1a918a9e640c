"""Looks at each stream's head when it may have ended, and announces what has.

Knows the loop: it sleeps by an exact alarm until shortly before an end is expected, and looks on every turn of the loop
for a moment then. Knows nothing of what a job is, beyond the events at its start and its end. The same `poll` serves
both ways to run: here the loop calls it, in stepped mode the engine's thread does.
"""

import asyncio
import logging
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic

from aiokvoffload.device.base import Device
from aiokvoffload.poller.alarm import Alarm, open_alarm
from aiokvoffload.poller.allowance import SpinAllowance
from aiokvoffload.poller.lag import LagRecorder, LagStatistics
from aiokvoffload.poller.lateness import Lateness
from aiokvoffload.poller.watch import PATIENCE_S, Ended, JobT, StreamWatch

logger = logging.getLogger(__name__)

ANNOUNCED_PER_TURN = 4
"""What follows an announcement may take a tenth of a millisecond, and many jobs may have ended at once (I10). One of
each stream that is due is announced all the same."""
MOST_FIGURES_LATE = 64
"""Ends whose times may be left for a turn in which none is announced, which may never come."""
SPIN_S = 0.000015
"""What comes sooner is waited for on every turn of the loop: an alarm costs as much of the core, and comes late."""


@dataclass(frozen=True, slots=True)
class PollerStatistics:
    """What a poller did.

    Attributes:
        polls: rounds of questions.
        announced: jobs.
        lag: from a job's event to its announcement.
        spins: turns of the loop that were polled one after the other.
        alarms: times it slept until an alarm rang.
        polling_s: processor time of the turns on the loop, without what followed the announcements.
    """

    polls: int
    announced: int
    lag: LagStatistics
    spins: int = 0
    alarms: int = 0
    polling_s: float = 0.0


class Poller(Generic[JobT]):
    """Asks for completions and announces them.

    Args:
        device: whose events they are.
        num_queues: how many streams there are; those that come first are asked first.
        on_ended: called with each job whose event has completed, on the polling thread.
        on_broken: called when the device refuses to answer; the jobs left will never be announced.
        now_s: the time, in seconds, as `Device.completed_at` tells it.
        alarm: opens what wakes a loop, given the loop and what to call.
    """

    def __init__(
        self,
        device: Device,
        num_queues: int,
        *,
        on_ended: Callable[[JobT], None],
        on_broken: Callable[[Exception], None],
        now_s: Callable[[], float] = time.perf_counter,
        alarm: Callable[[asyncio.AbstractEventLoop, Callable[[], None]], Alarm] = open_alarm,
    ) -> None:
        self._watches: tuple[StreamWatch[JobT], ...] = tuple(StreamWatch(device) for _ in range(num_queues))
        self._on_ended, self._on_broken = on_ended, on_broken
        self._now_s, self._open_alarm = now_s, alarm
        self._lag = LagRecorder()
        self._polls = self._announced = self._spins = self._alarms = 0
        self._polling_s = self._announcing_s = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._alarm: Alarm | None = None
        self._alarm_delay_s = self._alarm_due_s = self._spinning_since_s = 0.0
        self._lateness = Lateness()
        self._turn_pending: asyncio.Handle | None = None
        self._fresh = self._has_looked = False
        self._allowance = SpinAllowance()
        self._ended: list[tuple[StreamWatch[JobT], Ended[JobT]]] = []

    def track(self, queue: int, job: JobT) -> None:
        """Watch `job`, enqueued last on the stream of `queue`."""
        watch = self._watches[queue]
        watch.track(job, self._now_s())
        if len(watch) == 1:
            self._fresh = True
            self._request_turn()

    def look(self) -> None:
        """Ask now for what has just been tracked, on the loop and from nobody's submission: it may have ended."""
        if self._fresh and self._loop is not None:
            self._turn()

    def look_at(self, queue: int, job: JobT) -> None:
        """Ask for `job`, just tracked, from its submission: it may have ended. What is behind others has not.

        Nobody can wait for it yet, so that its announcement calls nobody; only that the device has failed is told to
        all. Once in a turn of the loop: whoever submits in a row would else never wait, and nobody else would get a
        turn (I10), and whoever submits the next from a callback of the last would never come back from it.
        """
        watch = self._watches[queue]
        if self._loop is None or self._has_looked or len(watch) != 1 or watch.jobs[0] is not job:
            return
        self._has_looked = True
        self._polls += 1
        try:
            self._announce_head(watch)
        except Exception as error:  # noqa: BLE001 - as in a turn
            self._break(error)

    def poll(self) -> int:
        """Announce all jobs that have ended; returns how many."""
        announced = self._poll(sys.maxsize, due_by_s=None)
        self._take_figures()
        return announced

    def _poll(self, limit: int, *, due_by_s: float | None) -> int:
        """Ask for the heads that are due, or for all, one of each stream in turn, until so many have been announced.

        Of each stream that is due at least the head is asked for: a stream whose jobs end as fast as they are announced
        must not keep the others' from being told.
        """
        self._polls += 1
        before = self._announced
        try:
            due = [watch for watch in self._watches if watch.jobs and (due_by_s is None or watch.is_due(due_by_s))]
            while due and self._announced - before < limit:
                due = [watch for watch in due if self._announce_head(watch) and watch.jobs]
        except Exception as error:  # noqa: BLE001 - whatever it is, nobody may wait for an answer that cannot come
            self._break(error)
        return self._announced - before

    def _announce_head(self, watch: StreamWatch[JobT]) -> bool:
        """Announce a stream's first job, if it has ended."""
        ended = watch.take_ended(self._now_s(), crowded=self._is_crowded(watch))
        if ended is None:
            return False
        self._ended.append((watch, ended))
        self._announced += 1
        self._announce(ended.job)
        return True

    def _is_crowded(self, watch: StreamWatch[JobT]) -> bool:
        """Whether another stream's transfer uses the bus. A loop, since a generator takes longer than the question."""
        for other in self._watches:  # noqa: SIM110
            if other.started_at_s is not None and other is not watch:
                return True
        return False

    def _announce(self, job: JobT) -> None:
        begun_s = time.thread_time()
        try:
            self._on_ended(job)
        except Exception:  # one job's trouble must not stop the others' results (faults 23, 27)
            logger.exception("announcing the end of %r failed", job)
        self._announcing_s += time.thread_time() - begun_s

    def _take_figures(self) -> None:
        """Of jobs announced in earlier turns: whoever waits for one goes on first."""
        ended, self._ended = self._ended, []
        for watch, each in ended:
            if each.job.busy_s is None:  # it teaches nothing, and to date it the driver's lock may be waited for
                continue
            try:
                self._lag.add(max(0.0, each.seen_s - watch.completed_at(each)))
                watch.learn(each)
            except Exception:  # a figure must never cost a result (fault 52)
                logger.debug("the times of %r are not known", each.job, exc_info=True)

    def _break(self, error: Exception) -> None:
        for watch in self._watches:
            watch.clear()
        self._on_broken(error)

    def start(self) -> None:
        """Poll on the running loop until `stop`, whenever there is something to ask for.

        By handles and not in a task, since whoever cancels all tasks of a loop would cancel it too, while the copies
        that others wait for go on (I1, I2).
        """
        self._loop = asyncio.get_running_loop()
        self._alarm = self._open_alarm(self._loop, self._ring)
        if any(self._watches):
            self._request_turn()

    def stop(self) -> None:
        """Poll no more by itself; also when the loop has been closed."""
        self._loop = None
        self._withdraw_turn()
        self._take_figures()
        if self._alarm is not None:
            self._alarm.close()
            self._alarm = None

    def _ring(self) -> None:
        self._alarms += 1
        self._lateness.learn(self._alarm_delay_s, self._now_s() - self._alarm_due_s)
        self._turn()

    def _spin(self) -> None:
        self._spins += 1
        self._allowance.spend(self._now_s() - self._spinning_since_s)
        self._turn()

    def _turn(self) -> None:
        begun_s = time.thread_time() - self._announcing_s
        self._withdraw_turn()
        self._fresh = self._has_looked = False
        announced = 1
        try:
            announced = self._poll(ANNOUNCED_PER_TURN, due_by_s=self._now_s() + SPIN_S)
        finally:  # an interrupt raised here ends this run of the loop; another run of it goes on
            if not announced or len(self._ended) >= MOST_FIGURES_LATE:
                self._take_figures()
            if announced:  # the next turn comes after whoever waited for them
                self._request_turn()
            else:
                self._plan_turn()
            self._polling_s += time.thread_time() - self._announcing_s - begun_s

    def _request_turn(self) -> None:
        if self._loop is not None and self._turn_pending is None:
            self._turn_pending = self._loop.call_soon(self._turn)

    def _withdraw_turn(self) -> None:
        if self._turn_pending is not None:
            self._turn_pending.cancel()
            self._turn_pending = None

    def _plan_turn(self) -> None:
        """Decide how to wait for the first end that is expected."""
        if self._loop is None or self._alarm is None or self._turn_pending is not None:
            return
        now_s = self._now_s()
        looks_s = [watch.plan(now_s) for watch in self._watches if watch.jobs]
        if not looks_s:
            self._alarm.clear()
            return
        delay_s = min(looks_s) - now_s
        if delay_s > SPIN_S:
            self._sleep(now_s, delay_s)
        elif self._allowance.left_s(now_s) > 0.0:
            self._spinning_since_s = now_s
            self._turn_pending = self._loop.call_soon(self._spin)
        else:
            self._sleep(now_s, PATIENCE_S)

    def _sleep(self, now_s: float, delay_s: float) -> None:
        """Be woken as long before the time as alarms usually come late, but for a pause of half of it.

        On a busy machine alarms are later than a pause is long, and looking without one is what would keep it busy.
        """
        delay_s -= min(self._lateness.usual_s(delay_s), delay_s / 2)
        self._alarm_delay_s, self._alarm_due_s = delay_s, now_s + delay_s
        if self._alarm is not None:
            self._alarm.set(delay_s)

    def statistics(self) -> PollerStatistics:
        """A frozen record of counts and lags."""
        self._take_figures()
        return PollerStatistics(
            polls=self._polls,
            announced=self._announced,
            lag=self._lag.statistics(),
            spins=self._spins,
            alarms=self._alarms,
            polling_s=self._polling_s,
        )

    def __repr__(self) -> str:
        return f"Poller({[len(watch) for watch in self._watches]} in flight, {self._announced} announced)"
