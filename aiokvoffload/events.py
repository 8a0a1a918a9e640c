"""Tells subscribers what became resident and what left, in one order without holes.

Publishing is synchronous and never waits for a subscriber: one that is too slow loses the oldest records and is told
exactly which (I9, I11). What an event means is decided by whoever publishes it.
"""

import asyncio
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, Self

from aiokvoffload.base import OffloadingEvent
from aiokvoffload.errors import ArgumentError, ClosedError


class EventRecord(NamedTuple):
    """One event and its place in the bus's order; sequence numbers start at 0 and have no holes."""

    sequence: int
    event: OffloadingEvent


class GapRecord(NamedTuple):
    """The subscriber was too slow: the records `first` to `last`, both included, were dropped."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class EventBusStatistics:
    """Counts of an event bus."""

    published: int
    subscribers: int
    dropped: int
    """Records dropped over all subscribers, past ones included."""


class EventBus:
    """Hands every published event to every subscription, in order.

    Args:
        max_pending: records that a subscription may hold unless it asks for another bound.
    """

    def __init__(self, max_pending: int = 10_000) -> None:
        self._max_pending = max_pending
        self._next_sequence = 0
        self._dropped = 0
        self._closed = False
        self._subscriptions: set[Subscription] = set()

    def publish(self, events: Iterable[OffloadingEvent]) -> None:
        """Number the events and hand them on. Called on the thread of the loop that subscribers run on."""
        for event in events:
            record = EventRecord(self._next_sequence, event)
            self._next_sequence += 1
            for subscription in self._subscriptions:
                self._dropped += subscription._push(record)

    def subscribe(self, *, max_pending: int | None = None) -> "Subscription":
        """Receive every event published from now on: `async for record in bus.subscribe(): ...`.

        Args:
            max_pending: records kept for a slow subscriber before the oldest are dropped.

        Raises:
            ArgumentError: the bound is below 1.
            ClosedError: the bus is closed.
        """
        if self._closed:
            raise ClosedError("subscribe: the event bus is closed")
        bound = self._max_pending if max_pending is None else max_pending
        if not isinstance(bound, int) or bound < 1:
            raise ArgumentError(f"max_pending must be a whole number of at least 1, got {bound!r}")
        subscription = Subscription(self, bound)
        self._subscriptions.add(subscription)
        return subscription

    def close(self) -> None:
        """End every subscription after what it already holds; repeating it does nothing."""
        self._closed = True
        for subscription in tuple(self._subscriptions):
            subscription.close()

    def statistics(self) -> EventBusStatistics:
        """Counts so far."""
        return EventBusStatistics(self._next_sequence, len(self._subscriptions), self._dropped)

    def __repr__(self) -> str:
        return f"<EventBus {self._next_sequence} published, {len(self._subscriptions)} subscribers>"


class Subscription:
    """One subscriber's view: an async iterator of `EventRecord` and `GapRecord`, ended by `close()` on either side.

    Also an async context manager that closes itself. One task iterates at a time.
    """

    def __init__(self, bus: EventBus, max_pending: int) -> None:
        self._bus = bus
        self._max_pending = max_pending
        self._records: deque[EventRecord] = deque()
        self._gap: GapRecord | None = None
        self._changed = asyncio.Event()
        self._closed = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> EventRecord | GapRecord:
        while not self._records and not self._closed:
            self._changed.clear()
            await self._changed.wait()
        if self._gap is not None:
            gap, self._gap = self._gap, None
            return gap
        if self._records:
            return self._records.popleft()
        raise StopAsyncIteration

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Receive nothing more; what is already held can still be read. Repeating it does nothing."""
        self._closed = True
        self._bus._subscriptions.discard(self)
        self._changed.set()

    def _push(self, record: EventRecord) -> int:
        """Keep `record`; returns how many records were dropped to make room for it."""
        self._records.append(record)
        self._changed.set()
        if len(self._records) <= self._max_pending:
            return 0
        lost = self._records.popleft().sequence
        # Only the oldest is ever dropped, so what is missing is always one unbroken stretch before the head.
        self._gap = GapRecord(lost if self._gap is None else self._gap.first, lost)
        return 1

    def __repr__(self) -> str:
        return f"<Subscription {len(self._records)} of {self._max_pending} pending>"
