"""Alarms ring once, on the loop, and leave no descriptor."""

import asyncio
import gc
import os
import sys
from collections.abc import Callable

import pytest

from aiokvoffload.poller.alarm import CoarseAlarm, TimerAlarm, open_alarm
from aiokvoffload.poller.timerfd import TimerDescriptor

exact = pytest.mark.skipif(sys.platform != "linux", reason="timers as descriptors are Linux's")
BOTH = [pytest.param(TimerAlarm, marks=exact), CoarseAlarm]
Opener = Callable[[asyncio.AbstractEventLoop, Callable[[], None]], TimerAlarm | CoarseAlarm]


def is_open(fileno: int) -> bool:
    try:
        os.fstat(fileno)
    except OSError:
        return False
    return True


@pytest.mark.parametrize("opener", BOTH)
async def test_an_alarm_rings_once_for_each_time_it_is_set_and_not_before(opener: Opener) -> None:
    loop, rung = asyncio.get_running_loop(), asyncio.Event()
    times: list[float] = []

    def ring() -> None:
        times.append(loop.time())
        rung.set()

    alarm = opener(loop, ring)
    for number in range(3):
        set_at = loop.time()
        alarm.set(0.002)
        await rung.wait()
        rung.clear()
        assert len(times) == number + 1
        assert times[-1] >= set_at + 0.001  # uvloop's own clock stands still within a turn
    alarm.set(0.0)
    await rung.wait()
    assert len(times) == 4
    alarm.close()


@exact
async def test_an_alarm_may_be_set_again_while_it_rings_and_is_silent_after_one_that_raised() -> None:
    loop, rung, done = asyncio.get_running_loop(), list[int](), asyncio.Event()

    def ring() -> None:
        rung.append(len(rung))
        if len(rung) < 3:
            alarm.set(0.0001)
        else:
            done.set()
            raise KeyError("the ring's own trouble")

    loop.set_exception_handler(lambda _loop, _context: None)
    alarm = TimerAlarm(loop, ring)
    alarm.set(0.0001)
    await done.wait()
    await asyncio.sleep(0.01)
    assert rung == [0, 1, 2]
    alarm.set(0.0001)
    alarm.clear()
    alarm.clear()
    await asyncio.sleep(0.005)
    assert rung == [0, 1, 2]
    loop.set_exception_handler(None)
    alarm.close()


@pytest.mark.parametrize("opener", BOTH)
async def test_the_latest_setting_counts_and_a_cleared_alarm_is_silent(opener: Opener) -> None:
    loop, rung = asyncio.get_running_loop(), asyncio.Event()
    alarm, other = opener(loop, lambda: pytest.fail("rang")), opener(loop, rung.set)
    alarm.set(0.0001)
    alarm.clear()
    alarm.set(0.0001)
    alarm.set(3600.0)
    other.set(0.003)
    await rung.wait()
    alarm.close()
    other.close()
    other.close()
    assert "closed" in repr(other) or "off" in repr(other)


@exact
async def test_the_exact_alarm_is_the_one_that_is_opened_and_close_gives_its_descriptor_back() -> None:
    alarm = open_alarm(asyncio.get_running_loop(), lambda: None)
    assert isinstance(alarm, TimerAlarm)
    fileno = alarm._timer.fileno
    assert is_open(fileno)
    alarm.close()
    assert not is_open(fileno)
    alarm.set(0.0)  # nothing to ring any more


@exact
def test_an_alarm_outlives_its_loop_and_closes_then(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.new_event_loop()
    alarm = TimerAlarm(loop, lambda: None)
    loop.close()
    alarm.set(0.0)
    alarm.close()
    assert not is_open(alarm._timer.fileno)


@exact
def test_a_forgotten_timer_closes_its_descriptor() -> None:
    timer = TimerDescriptor()
    fileno = timer.fileno
    assert is_open(fileno)
    del timer
    gc.collect()
    assert not is_open(fileno)


async def test_where_there_are_no_such_timers_the_loops_own_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aiokvoffload.poller.timerfd._libc", None)
    alarm = open_alarm(asyncio.get_running_loop(), lambda: None)
    assert isinstance(alarm, CoarseAlarm)
    alarm.close()


@exact
async def test_a_loop_that_watches_no_descriptors_costs_none(monkeypatch: pytest.MonkeyPatch) -> None:
    class Blind(asyncio.SelectorEventLoop):
        def add_reader(self, *_: object) -> None:
            raise NotImplementedError

    loop = Blind()
    alarm = open_alarm(loop, lambda: None)
    assert isinstance(alarm, CoarseAlarm)
    alarm.close()
    loop.close()
