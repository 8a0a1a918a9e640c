"""What is sent to somebody who missed something: records of the history again, or all that is resident.

Knows the bus and payloads; knows no socket. Whatever is sent ends with number -1 and nothing in it.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator

from aiokvoffload.base import EventKind, OffloadingEvent, RemovalReason
from aiokvoffload.cache.chains import split_by_group
from aiokvoffload.events.bus import EventBus
from aiokvoffload.events.records import EventRecord, GapRecord, Snapshot

_KEYS_PER_MESSAGE = 512
_KEYS_PER_TURN, _KEYS_A_MESSAGE_IS_WORTH = 1024, 64


class Turns:
    """Lets others on the loop have their turn after messages that took about a millisecond, by their keys."""

    __slots__ = ("_spent",)

    def __init__(self) -> None:
        self._spent = 0

    async def spend(self, num_keys: int) -> None:
        """A message with so many keys has been encoded and sent (I10)."""
        self._spent += num_keys + _KEYS_A_MESSAGE_IS_WORTH
        if self._spent >= _KEYS_PER_TURN:
            self._spent = 0
            await asyncio.sleep(0)


async def replay(bus: EventBus, first: int) -> AsyncIterator[EventRecord]:
    """The records from number `first` to the latest, as far as they are still kept; the numbers say what is missing."""
    latest = bus.latest
    if first > latest:
        return
    async with bus.subscribe(after=first - 1, name="replay") as records:
        records.close()  # what comes from now on is sent to everybody anyway
        async for record in records:
            if not isinstance(record, GapRecord):
                yield record


async def snapshot_messages(bus: EventBus) -> AsyncIterator[tuple[int, list[EventRecord]]]:
    """A snapshot as records under the number up to which it is true: every tier empty first, then what it holds."""
    snapshot = await bus.snapshot()
    yield snapshot.sequence, list(_cleared(snapshot))
    for message in _stored(bus, snapshot):
        yield snapshot.sequence, message


def _cleared(snapshot: Snapshot) -> Iterator[EventRecord]:
    for tier in snapshot.tiers:
        event = OffloadingEvent(EventKind.CLEARED, (), tier.medium, tier.tier, RemovalReason.RESTART)
        yield EventRecord(snapshot.sequence, event)


def _stored(bus: EventBus, snapshot: Snapshot) -> Iterator[list[EventRecord]]:
    for tier in snapshot.tiers:
        for part in tier.parts:
            for start in range(0, len(part), _KEYS_PER_MESSAGE):
                groups = split_by_group(part[start : start + _KEYS_PER_MESSAGE])
                events = (
                    OffloadingEvent(EventKind.STORED, tuple(keys), tier.medium, tier.tier) for keys in groups.values()
                )
                yield [
                    EventRecord(snapshot.sequence, event, tuple(map(bus.metadata_of, event.keys))) for event in events
                ]
