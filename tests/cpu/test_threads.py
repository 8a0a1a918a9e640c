"""Calls on their way back to the owner's thread."""

import asyncio
import logging
import time
from functools import partial
from itertools import pairwise

import pytest

from aiokvoffload.cpu import threads
from aiokvoffload.cpu.threads import PASS_S, Handover


def test_a_call_that_raises_keeps_no_other_back(caplog: pytest.LogCaptureFixture) -> None:
    """Fault 27."""
    handover, called = Handover(), list[int]()
    handover.post(lambda: called.remove(7))
    handover.post(lambda: called.append(1))
    with caplog.at_level(logging.CRITICAL):
        handover.run()
    assert called == [1]


class CountingHandover(Handover):
    """Counts its hops onto the loop."""

    hops = 0

    def _hop(self, loop: asyncio.AbstractEventLoop) -> None:
        self.hops += 1
        super()._hop(loop)


async def test_what_many_calls_leave_of_a_pass_is_for_others_and_the_calls_keep_their_order() -> None:
    """I10: behind a loop that was kept from its work for a while there are a hundred calls."""
    handover, called = CountingHandover(), list[int]()
    handover.bind(asyncio.get_running_loop())

    def call(number: int) -> None:
        called.append(number)
        if number == 1:
            handover.post(partial(call, 5))
        until_s = time.perf_counter() + PASS_S
        while time.perf_counter() < until_s:
            pass

    for number in range(5):
        handover.post(partial(call, number))
    passes = []
    for _ in range(20):
        await asyncio.sleep(0)
        passes.append(len(called))
        if called == [0]:
            handover.post(partial(call, 6))
    assert called == [0, 1, 2, 3, 4, 6, 5]
    assert all(later - earlier <= 1 for earlier, later in pairwise([0, *passes]))
    assert handover.hops == 7


async def test_short_calls_share_a_pass_and_nothing_follows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "PASS_S", 60.0)
    handover, called = CountingHandover(), list[int]()
    handover.bind(asyncio.get_running_loop())
    for number in range(3):
        handover.post(partial(called.append, number))
    for _ in range(5):
        await asyncio.sleep(0)
    assert (called, handover.hops) == ([0, 1, 2], 1)


async def test_an_interrupt_in_a_call_leaves_the_others_to_the_next_pass() -> None:
    handover, called = Handover(), list[int]()
    loop = asyncio.get_running_loop()
    handover.bind(loop)

    def interrupt() -> None:
        raise KeyboardInterrupt

    handover.post(interrupt)
    handover.post(partial(called.append, 1))
    with pytest.raises(KeyboardInterrupt):
        handover._hop(loop)
    await asyncio.sleep(0)
    assert called == [1]
