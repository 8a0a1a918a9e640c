"""One tier's calls: their order, their deadlines, and the tier's way out of service and back."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from aiokvoffload.base.tier import StoreOutcome
from aiokvoffload.testing import ManualClock
from aiokvoffload.testing.pages import page_buffers
from aiokvoffload.testing.tier import tier_keys
from aiokvoffload.testing.tier_faults import FaultyTier
from aiokvoffload.tiering.chain.calls import CallEnd, TierCall
from aiokvoffload.tiering.chain.lane import TierLane
from aiokvoffload.tiering.config import TierConfig
from aiokvoffload.tiering.memory import MemoryTier
from tests.tiering.stage import settle


class LaneStage:
    """A lane and what became of its calls, in the order they ended."""

    def __init__(self, **limits: Any) -> None:
        self.tier = FaultyTier(MemoryTier(64, [4096]))
        self.clock = ManualClock()
        self.changes = 0
        config = TierConfig(make=lambda shape: self.tier, **{"max_stores_in_flight": 1, **limits})
        self.lane = TierLane(self.tier, config, clock=self.clock, on_serving=self.count)
        self.ended: list[tuple[int, str]] = []
        self.returned: list[int] = []

    def count(self) -> None:
        self.changes += 1

    def call(self, number: int, *, count: int = 1, max_keys: int = 1) -> TierCall:
        def settled(end: CallEnd, outcomes: Sequence[Any] | None) -> None:
            self.ended.append((number, outcomes[0].value if outcomes else end.value))

        keys = tier_keys(*range(number, number + count))
        return TierCall(
            keys, 0, max_keys, lambda: page_buffers(count, 4096), settled, lambda: self.returned.append(number)
        )

    async def until_idle(self) -> None:
        while not self.lane.idle:
            await asyncio.sleep(0)


@pytest.fixture
async def stage() -> AsyncIterator[LaneStage]:
    stage = LaneStage()
    await stage.tier.open()
    yield stage
    stage.tier.release()
    await stage.lane.aclose(stage.clock.now_s())


async def test_loads_go_before_stores_that_have_not_begun(stage: LaneStage) -> None:
    """Fault 26."""
    stage.tier.hold()
    for number in range(3):
        stage.lane.store(stage.call(number))
    stage.lane.load(stage.call(10))
    await settle()
    assert stage.tier.calls == 2  # one store runs, and the load beside it
    stage.tier.release()
    await stage.until_idle()
    assert [number for number, _ in stage.ended] == [0, 10, 1, 2]
    assert stage.ended[1] == (10, "miss")
    assert stage.returned == [0, 10, 1, 2]


async def test_stores_that_have_piled_up_go_in_one_call(stage: LaneStage) -> None:
    stage.tier.hold()
    for number in range(0, 10, 2):
        stage.lane.store(stage.call(number, count=2, max_keys=6))
    stage.tier.release()
    await stage.until_idle()
    assert stage.tier.calls == 3  # the first alone, then three together, then the last
    assert [outcome for _, outcome in stage.ended] == ["stored"] * 5


async def test_a_store_that_would_wait_too_long_is_refused() -> None:
    """Fault 26: by what stores took lately."""
    stage = LaneStage(max_store_delay_s=3.0)
    await stage.tier.open()
    stage.tier.hold()
    stage.lane.store(stage.call(0))
    await settle()
    stage.clock.advance(2.0)
    stage.tier.release()
    await stage.until_idle()
    stage.tier.hold()
    accepted = [stage.lane.store(stage.call(number)) for number in range(1, 6)]
    assert accepted == [True, True, True, False, False]
    assert stage.lane.queues.store_delay_s == pytest.approx(4.0)
    assert stage.ended[1:] == [(4, "refused"), (5, "refused")]
    stage.tier.release()
    await stage.until_idle()
    assert await stage.lane.aclose(0.0) == ""


async def test_a_call_that_does_not_return_takes_the_tier_out_and_is_released_when_it_does(stage: LaneStage) -> None:
    """Fault 25, I2."""
    stage.tier.hold()
    stage.lane.load(stage.call(1))
    for number in range(2, 8):
        stage.lane.load(stage.call(number))
    await settle()
    stage.clock.advance(10.0)
    await settle()
    assert stage.ended[0] == (1, "late")
    assert {outcome for _, outcome in stage.ended} == {"late", "refused"}
    assert not stage.lane.serving
    assert stage.lane.late == 4
    assert stage.returned == [5, 6, 7]
    stage.tier.release()
    await settle()
    assert (stage.lane.late, sorted(stage.returned)) == (0, [1, 2, 3, 4, 5, 6, 7])


async def test_failures_in_a_row_take_loads_out_and_one_success_forgives(stage: LaneStage) -> None:
    for failing in (True, True, False, True, True):
        stage.tier.failing = failing
        stage.lane.load(stage.call(1))
        await stage.until_idle()
        await settle()
    assert stage.changes == 0
    stage.lane.load(stage.call(1))
    await stage.until_idle()
    assert (stage.lane.serving, stage.changes) == (False, 1)
    assert "3 calls in a row failed" in stage.lane.loading.reason


async def test_a_full_disk_takes_no_stores_and_is_still_read(stage: LaneStage) -> None:
    """Faults 31 and 42."""

    async def fail(keys: Sequence[Any], views: Sequence[Any]) -> Sequence[StoreOutcome]:
        return [StoreOutcome.FAILED] * len(keys)

    stage.tier.store = fail  # type: ignore[method-assign]
    for number in range(3):
        stage.lane.store(stage.call(number))
        await stage.until_idle()
    assert (stage.lane.serving, stage.lane.storing.serving) == (True, False)
    assert not stage.lane.store(stage.call(9))
    stage.lane.load(stage.call(1))
    await stage.until_idle()
    assert stage.ended[-1] == (1, "miss")
    await settle()
    stage.clock.advance(5.0)
    await settle()
    assert stage.lane.storing.serving


async def test_an_exception_of_a_tier_is_a_failure_and_the_lane_goes_on(stage: LaneStage) -> None:
    """Fault 27."""

    async def raise_something(keys: Sequence[Any], views: Sequence[Any]) -> Sequence[Any]:
        raise ValueError("a tier should not")

    load, stage.tier.load = stage.tier.load, raise_something  # type: ignore[method-assign]
    stage.lane.load(stage.call(1))
    await stage.until_idle()
    assert (stage.ended, stage.returned) == ([(1, "returned")], [1])
    stage.tier.load = load  # type: ignore[method-assign]
    stage.lane.load(stage.call(2))
    await stage.until_idle()
    assert stage.ended[-1] == (2, "miss")


async def test_a_tier_is_taken_back_only_when_a_probe_succeeds(stage: LaneStage) -> None:
    stage.tier.failing = True
    for _ in range(3):
        stage.lane.load(stage.call(1))
        await stage.until_idle()
    for _ in range(2):
        await settle()
        stage.clock.advance(5.0)
        await settle()
        assert not stage.lane.serving
    stage.tier.failing = False
    stage.clock.advance(5.0)
    await settle()
    assert stage.lane.serving
    assert "TierLane 'memory'" in repr(stage.lane)


async def test_a_close_says_what_it_left() -> None:
    stage = LaneStage()
    await stage.tier.open()
    stage.tier.hold()
    stage.lane.store(stage.call(1))
    stage.lane.store(stage.call(2))
    closing = asyncio.create_task(stage.lane.aclose(5.0))
    await settle()
    stage.clock.advance(5.0)
    assert await closing == "tier 'memory': 1 calls, its close"
    assert stage.ended == [(2, "refused")]
    stage.tier.release()
    await settle()
    assert stage.returned == [2, 1]


def end_in_some_passes(stage: LaneStage) -> asyncio.Event:
    """Calls wait for the event, and take some passes of the loop from there to their end, as a real tier's do."""
    gate = asyncio.Event()

    async def move(keys: Sequence[Any], views: Sequence[Any]) -> Sequence[Any]:
        await gate.wait()
        await settle(10)
        return [StoreOutcome.STORED] * len(keys)

    stage.tier.store = stage.tier.load = move  # type: ignore[method-assign]
    return gate


async def test_what_has_ended_by_the_time_that_a_loop_wakes_late_is_not_left() -> None:
    stage = LaneStage()
    await stage.tier.open()
    gate = end_in_some_passes(stage)
    stage.lane.store(stage.call(1))
    closing = asyncio.create_task(stage.lane.aclose(5.0))
    await settle()
    gate.set()
    stage.clock.advance(60.0)
    assert await closing == ""
    assert stage.ended == [(1, "stored")]


async def test_a_call_that_has_returned_by_the_time_that_a_loop_wakes_late_was_in_time(stage: LaneStage) -> None:
    gate = end_in_some_passes(stage)
    stage.lane.load(stage.call(1))
    await settle()
    gate.set()
    stage.clock.advance(60.0)
    await stage.until_idle()
    assert stage.ended == [(1, "stored")]
    assert (stage.lane.serving, stage.lane.late) == (True, 0)


async def test_a_close_that_could_not_go_on_while_the_loop_did_not_has_a_moment_more() -> None:
    stage = LaneStage()
    await stage.tier.open()
    going_on = asyncio.Event()

    async def close_slowly() -> None:
        await going_on.wait()

    stage.tier.aclose = close_slowly  # type: ignore[method-assign]
    closing = asyncio.create_task(stage.lane.aclose(5.0))
    await settle()
    stage.clock.advance(60.0)
    await settle(100)
    assert not closing.done()
    going_on.set()
    assert await closing == ""


@pytest.mark.parametrize("is_late", [False, True])
async def test_a_close_waits_for_no_call_whose_task_was_cancelled(stage: LaneStage, is_late: bool) -> None:
    """I2: nobody hears of its return, so its buffers are left; a close that waited for it took all its time-out."""
    stage.tier.hold()
    others = asyncio.all_tasks()
    stage.lane.store(stage.call(0))
    await settle()
    if is_late:
        stage.clock.advance(31.0)
        await settle()
    for task in asyncio.all_tasks() - others:
        task.cancel()
    await settle()
    stage.tier.release()
    assert await asyncio.wait_for(stage.lane.aclose(stage.clock.now_s() + 1000), 5) == "tier 'memory': 1 calls"
    assert stage.returned == []
    assert not stage.lane.idle
