"""The bus: one order, bounded subscriptions, and honesty about what was missed."""

import asyncio

import pytest

from aiokvoffload.base import EventKind, OffloadingEvent, OffloadKey, make_offload_key
from aiokvoffload.errors import ArgumentError, ClosedError
from aiokvoffload.events import EventBus, EventRecord, GapRecord


def stored(number: int) -> OffloadingEvent:
    key: OffloadKey = make_offload_key(b"%08d" % number, 0)
    return OffloadingEvent(EventKind.STORED, (key,), "CPU", "cpu")


async def drain(bus: EventBus, *, max_pending: int, publish: int) -> list[EventRecord | GapRecord]:
    subscription = bus.subscribe(max_pending=max_pending)
    for number in range(publish):
        bus.publish([stored(number)])
    bus.close()
    return [record async for record in subscription]


async def test_every_subscriber_sees_every_event_in_order() -> None:
    bus = EventBus()
    first, second = bus.subscribe(), bus.subscribe()
    bus.publish([stored(0), stored(1)])
    bus.publish([stored(2)])
    bus.close()
    seen = [record async for record in first]
    assert seen == [EventRecord(number, stored(number)) for number in range(3)]
    assert seen == [record async for record in second]


async def test_a_slow_subscriber_is_told_exactly_what_it_missed() -> None:
    """Fault 50: never blocked for, never silent."""
    bus = EventBus()
    records = await drain(bus, max_pending=2, publish=5)
    assert records == [GapRecord(0, 2), EventRecord(3, stored(3)), EventRecord(4, stored(4))]
    assert bus.statistics().dropped == 3


async def test_two_gaps_are_told_apart_by_what_was_read_between() -> None:
    bus = EventBus()
    subscription = bus.subscribe(max_pending=1)
    bus.publish([stored(0), stored(1)])
    assert [await anext(subscription), await anext(subscription)] == [GapRecord(0, 0), EventRecord(1, stored(1))]
    bus.publish([stored(2), stored(3), stored(4)])
    assert [await anext(subscription), await anext(subscription)] == [GapRecord(2, 3), EventRecord(4, stored(4))]
    subscription.close()


async def test_a_waiting_subscriber_wakes_when_something_is_published() -> None:
    bus = EventBus()
    async with bus.subscribe() as subscription:
        waiting = asyncio.ensure_future(anext(subscription))
        await asyncio.sleep(0)
        assert not waiting.done()
        bus.publish([stored(7)])
        assert await waiting == EventRecord(0, stored(7))


async def test_a_late_subscriber_starts_with_the_next_event() -> None:
    bus = EventBus()
    bus.publish([stored(0)])
    async with bus.subscribe() as subscription:
        bus.publish([stored(1)])
        assert await anext(subscription) == EventRecord(1, stored(1))


async def test_closing_the_bus_ends_a_waiting_subscriber() -> None:
    bus = EventBus()
    waiting = asyncio.ensure_future(anext(bus.subscribe()))
    await asyncio.sleep(0)
    bus.close()
    with pytest.raises(StopAsyncIteration):
        await waiting


async def test_a_cancelled_reader_loses_nothing() -> None:
    bus = EventBus()
    async with bus.subscribe() as subscription:
        waiting = asyncio.ensure_future(anext(subscription))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        bus.publish([stored(0)])
        assert await anext(subscription) == EventRecord(0, stored(0))


async def test_a_closed_subscription_no_longer_costs_the_bus_anything() -> None:
    bus = EventBus()
    async with bus.subscribe():
        assert bus.statistics().subscribers == 1
    assert bus.statistics().subscribers == 0


def test_wrong_bounds_and_closed_buses_are_refused() -> None:
    bus = EventBus()
    with pytest.raises(ArgumentError, match="max_pending must be a whole number of at least 1, got 0"):
        bus.subscribe(max_pending=0)
    bus.close()
    with pytest.raises(ClosedError, match="the event bus is closed"):
        bus.subscribe()
