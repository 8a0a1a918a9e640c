"""The jobs on one stream, and when to look at the first of them again.

Knows that a stream ends its work in order, so that only the head is asked for, and what the stream's transfers usually
take. Knows nothing of loops and timers.
"""

import logging
from collections import deque
from typing import Generic, NamedTuple, Protocol, TypeVar

from aiokvoffload.base import Event
from aiokvoffload.device.base import Device
from aiokvoffload.poller.estimator import Forecast, TransferEstimator

logger = logging.getLogger(__name__)

LOOKS_PER_WAIT = 4
"""The longer something has been waited for, the longer until the next look: so much of the wait."""
LONG_LOOKS_PER_WAIT = 64
"""The same beyond `PATIENCE_S`, where looking often costs more than it tells."""
LEAST_LOOKS_PER_TRANSFER, MOST_LOOKS_PER_TRANSFER = 16, 32
"""What part of its time a transfer may be late by: where it takes long, a few percent are not worth spinning for."""
LONG_TRANSFER_S = 0.001
"""From here on only the least looks are made, and none before it is due: long transfers in both directions add up."""
WARM_UP_S, WARM_UPS_PER_TRANSFER = 0.0001, 4
"""A core that slept is slow at first, so the loop is awake for so long before the first look, or for that part of what
the transfer takes if it is less: one that is not long, and before which the stream had nothing to do for longer."""
PATIENCE_S = 0.0001
"""Between two looks at a transfer that is due or has not begun; long transfers and long waits give more."""
LEAST_PATIENCE_S = 0.00002
MOST_PATIENCE_S = 0.001


class Tracked(Protocol):
    """What the poller needs of a job."""

    @property
    def start(self) -> Event | None:
        """The event before the job's first copy; `None` if there is none."""
        ...

    @property
    def end(self) -> Event | None:
        """The event after the job's last copy."""
        ...

    @property
    def size_bytes(self) -> int:
        """Bytes that it moves."""
        ...

    @property
    def busy_s(self) -> float | None:
        """Seconds from its start to its end on the device, known once its end was announced.

        `None` leaves no figures: nothing is learnt from the job, nor how late its end was noticed.
        """
        ...


JobT = TypeVar("JobT", bound=Tracked)


class Ended(NamedTuple, Generic[JobT]):
    """A job whose end event has completed.

    Attributes:
        job: the job.
        end: the event.
        seen_s: when it was asked, in seconds of `time.perf_counter`.
        started_s: when it began, if that was noted.
        crowded: whether other streams' transfers used the bus meanwhile.
    """

    job: JobT
    end: Event
    seen_s: float
    started_s: float | None
    crowded: bool


class StreamWatch(Generic[JobT]):
    """One stream's queue of jobs.

    Args:
        device: whose events they are.

    Attributes:
        jobs: in order; to be read only.
        started_at_s: when the head began, once that is known: it uses the bus; to be read only.
        look_at_s: when the head may have ended, in seconds of `time.perf_counter`; `None` if that is to be planned.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self.jobs: deque[JobT] = deque()
        self._head_since_s = self._asked_s = self._ended_s = 0.0
        self._idle_s = self._warm_up_s = 0.0
        self.started_at_s: float | None = None
        self.look_at_s: float | None = None
        self._crowded = False
        self._alone, self._shared = TransferEstimator(), TransferEstimator()

    def track(self, job: JobT, now_s: float) -> None:
        """A job has been enqueued last on the stream."""
        self.jobs.append(job)
        if len(self.jobs) == 1:
            self._idle_s = now_s - self._ended_s
            self._begin_head(now_s)

    def _begin_head(self, now_s: float) -> None:
        self._head_since_s, self.started_at_s, self._crowded = now_s, None, False
        self.look_at_s = self._warm_up_s = 0.0  # nobody has asked yet

    def take_ended(self, now_s: float, *, crowded: bool) -> Ended[JobT] | None:
        """The head, if it has ended; it leaves the queue.

        Args:
            now_s: the time, in seconds of `time.perf_counter`.
            crowded: whether another stream's transfer uses the bus.

        Raises:
            BrokenError: the device has failed.
        """
        if self.look_at_s and now_s >= self.look_at_s:
            self._idle_s = 0.0  # the end may come much later, so it is waited for awake only once
        self.look_at_s, self._asked_s = None, now_s
        if not self.jobs or (end := self.jobs[0].end) is None:
            return None
        self._crowded |= crowded
        if not self._device.query(end):
            self._note_start(self.jobs[0], now_s)
            return None
        ended = Ended(self.jobs.popleft(), end, now_s, self.started_at_s, self._crowded)
        self._ended_s, self._idle_s = now_s, 0.0
        self._begin_head(now_s)
        return ended

    def _note_start(self, job: JobT, now_s: float) -> None:
        if self.started_at_s is not None:
            return
        if job.start is None:
            self.started_at_s = self._head_since_s
        elif self._device.query(job.start):
            self.started_at_s = self._start_time(job.start, now_s)

    def _start_time(self, event: Event, now_s: float) -> float:
        try:
            return min(now_s, self._device.completed_at(event))
        except Exception:  # a figure must never cost a result (fault 52)
            logger.debug("when %r completed is not known", event, exc_info=True)
            return now_s

    def learn(self, ended: Ended[JobT]) -> None:
        """Take the time of a job that was announced as an example of what to expect."""
        if ended.job.busy_s is not None:
            (self._shared if ended.crowded else self._alone).learn(ended.job.size_bytes, ended.job.busy_s)

    def completed_at(self, ended: Ended[JobT]) -> float:
        """When a job that was announced ended; asks the device, which takes long, only where it must."""
        if ended.started_s is not None and ended.job.start is not None and ended.job.busy_s is not None:
            return ended.started_s + ended.job.busy_s
        return self._device.completed_at(ended.end)

    def is_due(self, by_s: float) -> bool:
        """Whether the head is to be asked for until then. There must be a head.

        Where that was not planned, because the turn that asked last announced others, it is counted from there: whoever
        waited for those may have kept the loop for longer than the head needs.
        """
        return self.plan(self._asked_s) <= by_s

    def plan(self, now_s: float) -> float:
        """From when on to ask for the head in every turn, which is decided once after each time. There must be one."""
        if self.look_at_s is None:
            self.look_at_s = self.next_look_s(now_s)
            self._warm_up_s = self._warm_up() if self._idle_s else 0.0
        return self.look_at_s - self._warm_up_s

    def next_look_s(self, now_s: float) -> float:
        """When the head may have ended, in seconds of `time.perf_counter`. There must be a head."""
        forecast = self._forecast(self.jobs[0].size_bytes)
        patience_s = max(PATIENCE_S, forecast.seconds / LEAST_LOOKS_PER_TRANSFER)
        if self.started_at_s is None:  # whatever it waits for, it has all of itself before it
            gap_s = max(LEAST_PATIENCE_S, _gap_s(now_s - self._head_since_s, patience_s))
            return now_s + max(forecast.seconds - forecast.spread_s, gap_s)
        due_s = self.started_at_s + forecast.seconds
        if forecast.seconds < LONG_TRANSFER_S:
            most_looks, early_s = MOST_LOOKS_PER_TRANSFER, forecast.spread_s
        else:
            most_looks, early_s = LEAST_LOOKS_PER_TRANSFER, 0.0
        if now_s < due_s - early_s:
            return due_s - early_s
        gap_s = _gap_s(max(early_s, now_s - due_s), patience_s)
        return now_s + max(gap_s, forecast.seconds / most_looks)

    def _warm_up(self) -> float:
        """For how long before the head's first look to be awake."""
        seconds = self._forecast(self.jobs[0].size_bytes).seconds
        if not seconds < min(LONG_TRANSFER_S, self._idle_s):
            return 0.0
        return min(WARM_UP_S, seconds / WARM_UPS_PER_TRANSFER)

    def _forecast(self, size_bytes: int) -> Forecast:
        estimator = self._shared if self._crowded and self._shared.count else self._alone
        return estimator.forecast(size_bytes)

    def clear(self) -> None:
        """Forget all jobs."""
        self.jobs.clear()
        self.started_at_s = None

    def __len__(self) -> int:
        return len(self.jobs)

    def __repr__(self) -> str:
        return f"StreamWatch({len(self.jobs)} in flight, alone {self._alone!r}, shared {self._shared!r})"


def _gap_s(waited_s: float, patience_s: float) -> float:
    """How long until the next look at what has been waited for so long already."""
    longest_s = max(patience_s, min(MOST_PATIENCE_S, waited_s / LONG_LOOKS_PER_WAIT))
    return min(longest_s, waited_s / LOOKS_PER_WAIT)
