"""A poller whose device, clock and alarm are in the test's hand."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from aiokvoffload.base import Event
from aiokvoffload.device.host import HostEvent
from aiokvoffload.poller import Poller
from aiokvoffload.testing import ManualClock, ManualDevice


def pending() -> HostEvent:
    event = HostEvent()
    event.record()
    return event


@dataclass(eq=False)
class Job:
    name: str
    end: Event | None = field(default_factory=pending)
    start: Event | None = None
    size_bytes: int = 0
    busy_s: float | None = None


class ClockedDevice(ManualDevice):
    """Notes which events it is asked about, and dates them by the test's clock."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self.queries: list[Event] = []
        self._clock = clock
        self._times: dict[Event, float] = {}

    def query(self, event: Event) -> bool:
        self.queries.append(event)
        return super().query(event)

    def reach(self, event: Event | None) -> None:
        """The stream has come to this mark, now."""
        assert isinstance(event, HostEvent)
        self._times[event] = self._clock.now_s()
        event.complete()

    def completed_at(self, event: Event) -> float:
        return self._times[event]


class ManualAlarm:
    """Rings when the test says so."""

    def __init__(self, clock: ManualClock, ring: Callable[[], None]) -> None:
        self._clock, self._ring = clock, ring
        self.due_s: float | None = None
        self.closed = False

    def set(self, delay_s: float) -> None:
        assert not self.closed
        self.due_s = self._clock.now_s() + delay_s

    def clear(self) -> None:
        self.due_s = None

    def close(self) -> None:
        self.closed = True
        self.due_s = None

    def ring(self, *, late_s: float = 0.0) -> None:
        """The time has come, and a little more."""
        assert self.due_s is not None
        self._clock.advance(max(0.0, self.due_s - self._clock.now_s()) + late_s)
        self.due_s = None
        self._ring()


class Stage:
    def __init__(self, num_queues: int = 2) -> None:
        self.clock = ManualClock(100.0)
        self.device = ClockedDevice(self.clock)
        self.ended: list[str] = []
        self.broken: list[Exception] = []
        self.alarms: list[ManualAlarm] = []
        self.poller: Poller[Job] = Poller(
            self.device,
            num_queues,
            on_ended=self.end,
            on_broken=self.broken.append,
            now_s=self.clock.now_s,
            alarm=self._open_alarm,
        )

    def _open_alarm(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> ManualAlarm:
        self.alarms.append(ManualAlarm(self.clock, ring))
        return self.alarms[-1]

    @property
    def alarm(self) -> ManualAlarm:
        """The one that is open."""
        return self.alarms[-1]

    def asleep(self) -> bool:
        """Whether the alarm is to ring."""
        return self.alarm.due_s is not None

    def end(self, job: Job) -> None:
        self.ended.append(job.name)
        if job.end is not None:
            start = job.end if job.start is None else job.start
            job.busy_s = self.device.completed_at(job.end) - self.device.completed_at(start)
        if job.name == "bad":
            raise KeyError(job.name)

    async def turns(self, count: int = 5) -> None:
        for _ in range(count):
            await asyncio.sleep(0)

    async def sleep_in(self, turns: int = 200, step_s: float = 2e-6) -> None:
        """Turns of the loop, each of which takes a moment, until the poller has set its alarm."""
        for _ in range(turns):
            await asyncio.sleep(0)
            if self.alarm.due_s is not None and self.alarm.due_s > self.clock.now_s():
                return
            self.clock.advance(step_s)
        raise AssertionError("the poller spins on")
