import asyncio
import logging
from dataclasses import dataclass

import pytest

from aiokvoffload.base import Event
from aiokvoffload.device.host import HostEvent
from aiokvoffload.poller import LagRecorder, Poller
from aiokvoffload.poller.lag import LAG_SAMPLES
from aiokvoffload.testing import ManualDevice


@dataclass
class Job:
    name: str
    end: Event | None
    start: Event | None = None
    size_bytes: int = 0


def pending() -> HostEvent:
    event = HostEvent()
    event.record()
    return event


class CountingDevice(ManualDevice):
    """Notes which events it is asked about."""

    def __init__(self) -> None:
        super().__init__()
        self.queries: list[Event] = []

    def query(self, event: Event) -> bool:
        self.queries.append(event)
        return super().query(event)


class Stage:
    def __init__(self) -> None:
        self.device = CountingDevice()
        self.ended: list[str] = []
        self.broken: list[Exception] = []
        self.poller: Poller[Job] = Poller(self.device, 2, on_ended=self.end, on_broken=self.broken.append)

    def end(self, job: Job) -> None:
        self.ended.append(job.name)
        if job.name == "bad":
            raise KeyError(job.name)


def test_only_the_head_of_each_stream_is_asked_for() -> None:
    stage = Stage()
    events = [pending() for _ in range(4)]
    for number, event in enumerate(events):
        stage.poller.track(number % 2, Job(str(number), event))
    assert stage.poller.poll() == 0
    assert stage.device.queries == events[:2]
    events[3].complete()
    events[1].complete()
    assert stage.poller.poll() == 2
    assert stage.ended == ["1", "3"]
    assert repr(stage.poller) == "Poller([2, 0] in flight, 2 announced)"


def test_one_jobs_trouble_stops_no_other(caplog: pytest.LogCaptureFixture) -> None:
    """Faults 23 and 27."""
    stage = Stage()
    for name in ("bad", "good"):
        event = pending()
        event.complete()
        stage.poller.track(0, Job(name, event))
    with caplog.at_level(logging.CRITICAL):
        assert stage.poller.poll() == 2
    assert (stage.ended, stage.broken) == (["bad", "good"], [])


def test_a_device_that_refuses_to_answer_is_reported() -> None:
    stage = Stage()
    stage.poller.track(0, Job("lost", pending()))
    stage.device.break_down()
    stage.poller.poll()
    assert len(stage.broken) == 1
    assert stage.poller.poll() == 0
    assert len(stage.broken) == 1


async def test_an_idle_poller_asks_nothing_and_a_job_wakes_it() -> None:
    stage = Stage()
    stage.poller.start()
    for _ in range(50):
        await asyncio.sleep(0)
    assert stage.poller.statistics().polls == 0
    event = pending()
    stage.poller.track(1, Job("one", event))
    for _ in range(5):
        await asyncio.sleep(0)
    assert stage.poller.statistics().polls > 0
    event.complete()
    while not stage.ended:
        await asyncio.sleep(0)
    lag = stage.poller.statistics().lag
    assert (lag.samples, lag.max_s < 1.0) == (1, True)
    stage.poller.stop()
    assert stage.broken == []


async def test_whoever_cancels_all_tasks_of_the_loop_does_not_stop_the_polling() -> None:
    """I1, fault 27."""
    stage = Stage()
    stage.poller.start()
    event = pending()
    stage.poller.track(0, Job("one", event))
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        assert "aiokvoffload" not in task.get_name()
    event.complete()
    while not stage.ended:
        await asyncio.sleep(0)
    stage.poller.stop()


class InterruptingDevice(ManualDevice):
    """The first question is interrupted as by Ctrl-C."""

    interrupts = 1

    def query(self, event: Event) -> bool:
        if self.interrupts:
            self.interrupts -= 1
            raise KeyboardInterrupt
        return super().query(event)


def test_an_interrupt_ends_the_loops_run_and_not_the_polling() -> None:
    ended: list[str] = []
    poller: Poller[Job] = Poller(
        InterruptingDevice(), 1, on_ended=lambda job: ended.append(job.name), on_broken=lambda error: None
    )
    event = pending()
    event.complete()

    async def wait() -> None:
        while not ended:
            await asyncio.sleep(0)

    loop = asyncio.new_event_loop()
    loop.call_soon(poller.start)
    loop.call_soon(poller.track, 0, Job("one", event))
    with pytest.raises(KeyboardInterrupt):
        loop.run_forever()
    loop.run_until_complete(wait())
    poller.stop()
    loop.close()


async def test_a_stopped_poller_asks_nothing() -> None:
    stage = Stage()
    stage.poller.start()
    stage.poller.track(0, Job("one", pending()))
    stage.poller.stop()
    stage.poller.track(0, Job("two", pending()))
    for _ in range(10):
        await asyncio.sleep(0)
    assert stage.device.queries == []


def test_lags_are_kept_up_to_a_bound() -> None:
    """I11."""
    recorder = LagRecorder()
    assert recorder.statistics().samples == 0
    for number in range(LAG_SAMPLES + 100):
        recorder.add(float(number))
    statistics = recorder.statistics()
    assert (statistics.samples, statistics.max_s) == (LAG_SAMPLES, LAG_SAMPLES + 99.0)
    assert 99.0 < statistics.p50_s < statistics.p99_s < statistics.max_s
