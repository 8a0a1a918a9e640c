"""The bus: one order, bounded subscriptions, and honesty about what was missed."""

import asyncio
import sys
from typing import Any

import pytest

from aiokvoffload.base import EventKind, OffloadingEvent, OffloadKey, RemovalReason, make_offload_key
from aiokvoffload.errors import ArgumentError, BusyError, ClosedError, LaggedError
from aiokvoffload.events import ChunkMetadata, EventBus, EventRecord, GapRecord, SlowPolicy, Subscription


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


# Resuming, media and policies


def on_disk(number: int) -> OffloadingEvent:
    return stored(number)._replace(medium="DISK", tier="disk")


async def read_all(bus: EventBus, **options: object) -> list[EventRecord | GapRecord]:
    async with bus.subscribe(**options) as subscription:  # type: ignore[arg-type]
        subscription.close()
        return [record async for record in subscription]


async def test_who_resumes_is_given_all_that_is_kept_however_low_its_bound_is() -> None:
    bus = EventBus(10)
    bus.publish(map(stored, range(12)))
    assert await read_all(bus, after=4, max_pending=1) == [EventRecord(n, stored(n)) for n in range(5, 12)]
    assert (await read_all(bus, after=-1))[:2] == [GapRecord(0, 1), EventRecord(2, stored(2))]
    assert await read_all(bus, after=11) == []


async def test_a_number_that_was_never_published_is_refused() -> None:
    bus = EventBus(first_sequence=100)
    with pytest.raises(ArgumentError, match="after must be the number of a record, the latest is 99, got 100"):
        bus.subscribe(after=100)
    bus.publish([stored(0)])
    assert await read_all(bus, after=42) == [GapRecord(43, 99), EventRecord(100, stored(0))]


async def test_media_that_are_not_wanted_are_no_gap_and_missed_ones_are() -> None:
    """I9: the numbers of a filtered subscriber have holes, and only what it wanted can be missed."""
    bus = EventBus(4)
    bus.publish([stored(0), *map(on_disk, range(1, 8))])
    assert await read_all(bus, after=0, media=["CPU"]) == []
    assert await read_all(bus, after=-1, media=["CPU"]) == [GapRecord(0, 3)]
    assert await read_all(bus, after=4, media=["DISK"]) == [EventRecord(n, on_disk(n)) for n in (5, 6, 7)]
    slow = bus.subscribe(max_pending=2, media=["DISK"])
    bus.publish([stored(8), stored(9), on_disk(10), stored(11)])
    slow.close()
    assert [record async for record in slow] == [EventRecord(10, on_disk(10))]


async def test_who_asked_to_be_disconnected_is_told_where_to_resume() -> None:
    """Fault 50."""
    bus = EventBus(10)
    subscription = bus.subscribe(policy=SlowPolicy.DISCONNECT, max_pending=2, name="router")
    bus.publish([stored(0)])
    assert await anext(subscription) == EventRecord(0, stored(0))
    bus.publish([stored(1), stored(2), stored(3)])
    with pytest.raises(LaggedError, match="'router' was ended: it lagged more than 2 records behind") as error:
        await anext(subscription)
    assert (error.value.after, bus.statistics().disconnected, bus.statistics().subscribers) == (0, 1, 0)
    assert await read_all(bus, after=error.value.after) == [EventRecord(n, stored(n)) for n in (1, 2, 3)]


async def test_room_is_waited_for_until_the_slow_one_has_read() -> None:
    bus = EventBus(10, block_timeout_s=60)
    subscription = bus.subscribe(policy=SlowPolicy.BLOCK, max_pending=2)
    states = [bus.is_congested]
    bus.publish([stored(0), stored(1)])
    states.append(bus.is_congested)
    waiting = asyncio.ensure_future(bus.wait_room())
    await asyncio.sleep(0)
    assert not waiting.done()
    reading = asyncio.ensure_future(drain_until(subscription, 1))
    await waiting
    await reading
    assert [*states, bus.is_congested] == [False, True, False]
    assert (bus.statistics().congested_waits, bus.statistics().dropped) == (1, 0)
    subscription.close()


async def drain_until(subscription: Subscription, last: int) -> None:
    async for record in subscription:
        if isinstance(record, EventRecord) and record.sequence == last:
            return


async def test_who_never_reads_is_waited_for_once_and_then_loses_what_the_history_loses() -> None:
    """Fault 50: briefly, and bounded."""
    bus = EventBus(4, block_timeout_s=0.001)
    subscription = bus.subscribe(policy=SlowPolicy.BLOCK, max_pending=2)
    bus.publish(map(stored, range(3)))
    await bus.wait_room()
    assert not bus.is_congested
    await bus.wait_room()
    bus.publish(map(stored, range(3, 8)))
    assert (bus.is_congested, bus.statistics().congested_waits) == (False, 1)
    subscription.close()
    records = [record async for record in subscription]
    assert records == [GapRecord(0, 3), *(EventRecord(n, stored(n)) for n in range(4, 8))]


async def test_one_who_has_caught_up_is_waited_for_again() -> None:
    bus = EventBus(4, block_timeout_s=0.001)
    async with bus.subscribe(policy=SlowPolicy.BLOCK, max_pending=2) as subscription:
        bus.publish(map(stored, range(3)))
        await bus.wait_room()
        for _ in range(3):
            await anext(subscription)
        assert not bus.is_congested
        bus.publish(map(stored, range(3, 5)))
        assert bus.is_congested


async def test_closing_a_blocking_subscriber_lets_transfers_go_on() -> None:
    bus = EventBus(4, block_timeout_s=60)
    subscription = bus.subscribe(policy=SlowPolicy.BLOCK, max_pending=1)
    bus.publish([stored(0)])
    waiting = asyncio.ensure_future(bus.wait_room())
    await asyncio.sleep(0)
    subscription.close()
    await waiting


async def test_a_busy_reader_lets_others_have_their_turn() -> None:
    """I10."""
    bus = EventBus(1000)
    subscription = bus.subscribe()
    bus.publish(map(stored, range(1000)))
    subscription.close()
    turns = 0

    async def other() -> None:
        nonlocal turns
        while not reading.done():
            turns += 1
            await asyncio.sleep(0)

    async def read() -> int:
        return len([record async for record in subscription])

    reading = asyncio.ensure_future(read())
    await other()
    assert (await reading, turns > 10) == (1000, True)


async def test_a_history_of_long_records_is_bounded_by_their_keys() -> None:
    """I11."""
    bus = EventBus(10)
    keys = tuple(make_offload_key(b"%08d" % number, 0) for number in range(100))
    bus.publish([stored(0)._replace(keys=keys)] * 10)
    assert bus.statistics().kept == 3  # 32 keys for each of 10 records
    assert (await read_all(bus, after=-1))[0] == GapRecord(0, 6)


async def test_a_stalled_subscriber_holds_nothing_that_is_not_in_the_history() -> None:
    """Fault 50: it is a number."""
    bus = EventBus(4)
    bus.subscribe(name="stalled")
    key = make_offload_key(b"watched", 0)
    before = sys.getrefcount(key)
    bus.publish([stored(0)._replace(keys=(key,))])
    assert sys.getrefcount(key) == before + 1
    bus.publish(map(stored, range(4)))
    assert sys.getrefcount(key) == before
    (statistics,) = bus.statistics().subscriptions
    assert (statistics.name, statistics.lag, statistics.dropped) == ("stalled", 5, 1)


async def test_wrong_bounds_are_refused() -> None:
    with pytest.raises(ArgumentError, match="max_pending must be a whole number of at least 1, got 0"):
        EventBus(0)
    with pytest.raises(ArgumentError, match="at most 10, which is what the bus keeps, got 11"):
        EventBus(10).subscribe(max_pending=11)
    with pytest.raises(ArgumentError, match="metadata must be ChunkMetadata for each key, got 'tokens'"):
        EventBus().attach_metadata({stored(0).keys[0]: "tokens"})  # type: ignore[dict-item]
    with pytest.raises(ArgumentError, match="metadata must map keys to ChunkMetadata, got 5"):
        EventBus().attach_metadata(5)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="metadata must be of offload keys, which are bytes, got 5"):
        EventBus().attach_metadata({stored(0).keys[0]: ABOUT, 5: ABOUT})  # type: ignore[dict-item]
    with pytest.raises(ClosedError, match="not open"):
        await EventBus().snapshot()


class BrokenArchive:
    last = -1

    def append(self, record: EventRecord) -> None:
        raise RuntimeError(f"no room for {record.sequence}")

    async def read(self, first: int, before: int) -> list[EventRecord]:
        return []


async def test_an_archive_that_raises_reaches_nobody_who_publishes() -> None:
    """Fault 52."""
    bus = EventBus(2)
    bus.use_archive(BrokenArchive())
    bus.publish(map(stored, range(4)))
    assert await read_all(bus, after=-1) == [GapRecord(0, 1), EventRecord(2, stored(2)), EventRecord(3, stored(3))]


# Metadata

ABOUT = ChunkMetadata(token_ids=(1, 2, 3), block_size=3)


def removed(number: int) -> OffloadingEvent:
    return stored(number)._replace(kind=EventKind.REMOVED, reason=RemovalReason.EVICTED)


async def test_metadata_goes_with_every_stored_event_until_the_last_tier_lets_go() -> None:
    bus, key = EventBus(), stored(1).keys[0]
    bus.attach_metadata({key: ABOUT})
    bus.publish([stored(1), on_disk(1), removed(1), stored(2), stored(1)])
    told = [record.metadata for record in await read_all(bus, after=-1) if isinstance(record, EventRecord)]
    assert told == [(ABOUT,), (ABOUT,), (), (), (ABOUT,)]
    bus.publish([removed(1), removed(1)._replace(medium="DISK", tier="disk")])
    assert (bus.metadata_of(key), bus.statistics().metadata_keys) == (None, 0)


async def test_a_cleared_tier_holds_nothing_any_more() -> None:
    bus, key = EventBus(), stored(1).keys[0]
    bus.attach_metadata({key: ABOUT})
    cleared = OffloadingEvent(EventKind.CLEARED, (), "CPU", "cpu", RemovalReason.RESET)
    bus.publish([stored(1), on_disk(1), cleared])
    assert bus.metadata_of(key) is ABOUT
    bus.publish([removed(1)._replace(medium="DISK", tier="disk")])
    assert bus.metadata_of(key) is None


async def test_metadata_is_bounded_and_that_of_refused_keys_is_forgotten() -> None:
    """I11."""
    bus = EventBus(max_metadata=2)
    keys = [stored(number).keys[0] for number in range(3)]
    bus.attach_metadata(dict.fromkeys(keys, ABOUT))
    assert [bus.metadata_of(key) for key in keys] == [None, ABOUT, ABOUT]
    bus.publish([stored(1)])
    bus.forget_metadata(keys)
    assert [bus.metadata_of(key) for key in keys] == [None, ABOUT, None]


async def test_what_was_gone_before_somebody_came_is_no_loss_of_theirs() -> None:
    """Whoever asked for a replay from 0 added as many lost events as there are microseconds since 1970."""
    bus = EventBus(2, first_sequence=1_000_000)
    bus.publish(stored(number) for number in range(5))
    late = bus.subscribe(after=-1)
    assert (late.statistics().lag, bus.statistics().dropped) == (5, 0)
    assert await anext(late) == GapRecord(0, 1_000_002)
    assert bus.statistics().dropped == 0
    bus.publish(stored(number) for number in range(5))
    assert bus.statistics().dropped == 5


async def test_a_second_reader_of_one_subscription_is_refused_and_the_first_goes_on() -> None:
    """The first one was never woken again."""
    bus = EventBus()
    subscription = bus.subscribe(name="router")
    first = asyncio.create_task(anext(subscription))
    await asyncio.sleep(0)
    with pytest.raises(BusyError, match="'router' is read by another task"):
        await anext(subscription)
    bus.publish([stored(0)])
    assert await first == EventRecord(0, stored(0))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"media": "CPU"}, r"media must be a set of names, such as {'CPU'}, got 'CPU'"),
        ({"media": 5}, "media must be a set of names.* got 5"),
        ({"policy": "block"}, "policy must be a SlowPolicy, got 'block'"),
        ({"name": 5}, "name must be text, got 5"),
    ],
)
async def test_a_subscriber_that_would_silently_be_told_nothing_is_refused(
    options: dict[str, Any], reason: str
) -> None:
    bus = EventBus()
    with pytest.raises(ArgumentError, match=reason):
        bus.subscribe(**options)
    assert bus.statistics().subscribers == 0


@pytest.mark.parametrize("options", [{"block_timeout_s": -1}, {"block_timeout_s": "x"}, {"first_sequence": "x"}])
def test_a_bus_names_the_number_that_is_none(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(ArgumentError, match=f"{name} must be"):
        EventBus(**options)
