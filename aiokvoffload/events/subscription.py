"""One subscriber's place in the order of events.

It is a number and nothing else: what a subscriber has not read lies in the bus's history, once for all of them, so one
that stalls costs neither memory nor time (fault 50).
"""

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Protocol, Self

from aiokvoffload.errors import BusyError, LaggedError
from aiokvoffload.events.records import EventRecord, GapRecord, SlowPolicy, SubscriptionStatistics
from aiokvoffload.events.timeline import Timeline

READS_PER_TURN = 64
"""Records that one reader is given before others on the loop get their turn (I10)."""


class Archive(Protocol):
    """Older records than the bus keeps, and those of earlier processes."""

    @property
    def last(self) -> int:
        """Number of the latest record; -1 if there is none."""
        ...

    def append(self, record: EventRecord) -> None:
        """Keep a record; returns at once."""
        ...

    async def read(self, first: int, before: int) -> Sequence[EventRecord]:
        """Some of the records from number `first` to `before`, exclusively, in order; none if none are left there."""
        ...


class Subscription:
    """An async iterator of `EventRecord` and `GapRecord`, ended by `close()` on either side.

    Also an async context manager that closes itself. One task iterates at a time.

    Args:
        timeline: the order, and what is kept of it.
        name: for statistics.
        policy: what becomes of it when it is slow.
        max_pending: records that it may lag behind.
        media: only events of these; all if it is `None`.
        after: number of the record behind which it begins.
        archive: what lies before the history, if anything does.
        on_wait: called when it begins to wait for the next record.
        on_read: called when it has read, if transfers wait for it.
        on_close: called when it is closed.
    """

    def __init__(
        self,
        timeline: Timeline,
        *,
        name: str,
        policy: SlowPolicy,
        max_pending: int,
        media: Collection[str] | None,
        after: int,
        archive: Archive | None,
        on_wait: Callable[["Subscription"], None],
        on_read: Callable[[], None],
        on_close: Callable[["Subscription"], None],
    ) -> None:
        self.name, self.policy = name, policy
        self._timeline, self._archive = timeline, archive
        self._max_pending, self._media = max_pending, media
        self._on_wait, self._on_read, self._on_close = on_wait, on_read, on_close
        self._next = after + 1
        self._first_missed = timeline.first  # what was gone before it came, nobody lost by being slow
        self._end: int | None = None
        # Who resumes may be further behind than who is slow: the history is there for that.
        self._is_resuming = self.lag > max_pending
        self._is_given_up = self._was_disconnected = False
        self._archived: deque[EventRecord | GapRecord] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._reads = self._dropped = 0

    @property
    def position(self) -> int:
        """Number of the latest record that it was given, told of, or not to be given: `after` for who resumes."""
        return self._next - 1

    @property
    def lag(self) -> int:
        """Records published that it has not been given."""
        return (self._timeline.next if self._end is None else self._end) - self._next

    @property
    def is_too_slow(self) -> bool:
        """Whether it lags further behind than it may."""
        return not self._is_resuming and self.lag > self._max_pending

    @property
    def holds_back(self) -> bool:
        """Whether new transfers are to wait for it."""
        if self._is_given_up and 2 * self.lag <= self._max_pending:
            self._is_given_up = False
        return not self._is_given_up and self.lag >= self._max_pending

    @property
    def dropped(self) -> int:
        """Records that it was too slow for, also those that it will be told of when it reads again."""
        return self._dropped + (0 if self._reads_archive else self._count_missed(self._floor))

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> EventRecord | GapRecord:
        self._reads += 1
        if self._reads % READS_PER_TURN == 0:
            await asyncio.sleep(0)
        while True:
            record = self._take()
            if record is not None:
                if self.policy is SlowPolicy.BLOCK:
                    self._on_read()
                return record
            if self._reads_archive:
                await self._read_archive()
            elif self._end is not None:
                raise StopAsyncIteration
            else:
                await self._wait()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Receive nothing more; what was published before can still be read. Repeating it does nothing."""
        if self._end is None:
            self._end = self._timeline.next
            self._on_close(self)
            self.wake()

    def disconnect(self) -> None:
        """End it because it is too slow."""
        self._was_disconnected = True
        self.close()

    def give_up(self) -> None:
        """Nobody waits for it any more until it has caught up."""
        self._is_given_up = True

    def wake(self) -> None:
        """There is something to read, or the end."""
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def statistics(self) -> SubscriptionStatistics:
        """How far behind it is."""
        # Numbers below the first one were never published here.
        lag = min(self.lag, self._timeline.next - self._timeline.origin)
        return SubscriptionStatistics(self.name, self.policy, lag, self.dropped)

    def _count_missed(self, before: int) -> int:
        return max(0, before - max(self._next, self._first_missed))

    @property
    def _reads_archive(self) -> bool:
        return self._archive is not None and self._is_resuming and self._next < self._timeline.first

    @property
    def _floor(self) -> int:
        """The oldest record that it may still be given."""
        first = self._timeline.first
        if self._is_resuming or self.policy is not SlowPolicy.DROP_OLDEST:
            return first
        return max(first, self._next + self.lag - self._max_pending)

    def _take(self) -> EventRecord | GapRecord | None:
        """What comes next, as far as it is in memory."""
        if self._was_disconnected:
            raise LaggedError(
                f"subscription {self.name!r} was ended: it lagged more than {self._max_pending} records behind; "
                f"subscribe again with after={self.position}",
                self.position,
            )
        if self._archived:
            return self._pass(self._archived.popleft())
        if self._is_resuming and self.lag <= self._max_pending:
            self._is_resuming = False
        if self._reads_archive:
            return None
        return self._take_gap() or self._take_record()

    def _take_gap(self) -> GapRecord | None:
        first, floor = self._next, self._floor
        if floor <= first:
            return None
        missed, self._next = self._count_missed(floor), floor
        if not self._timeline.has_lost(first, floor, self._media):
            return None
        self._dropped += missed
        return GapRecord(first, floor - 1)

    def _take_record(self) -> EventRecord | None:
        timeline, media = self._timeline, self._media
        end = timeline.next if self._end is None else min(self._end, timeline.next)
        while self._next < end:
            record = timeline.get(self._next)
            self._next += 1
            if media is None or record.event.medium in media:
                return record
        return None

    def _pass(self, record: EventRecord | GapRecord) -> EventRecord | GapRecord:
        if isinstance(record, GapRecord):
            self._dropped += self._count_missed(record.last + 1)
            self._next = record.last + 1
        else:
            self._next = record.sequence + 1
        return record

    async def _read_archive(self) -> None:
        """Get the next records from there, with the gaps that are in it."""
        if self._archive is None:
            return
        first = self._next
        records = await self._archive.read(first, self._timeline.first)
        if not records:
            self._archive = None  # the rest is a gap
        for record in records:
            if record.sequence > first:
                self._archived.append(GapRecord(first, record.sequence - 1))
            if self._media is None or record.event.medium in self._media:
                self._archived.append(record)
            first = record.sequence + 1
        if not self._archived:
            self._next = first

    async def _wait(self) -> None:
        if self._waiter is not None:
            raise BusyError(f"subscription {self.name!r} is read by another task: subscribe once for each")
        self._waiter = waiter = asyncio.get_running_loop().create_future()
        self._on_wait(self)
        try:
            await waiter
        finally:
            if self._waiter is waiter:
                self._waiter = None

    def __repr__(self) -> str:
        return f"<Subscription {self.name!r}: {self.lag} of {self._max_pending} pending, {self.dropped} dropped>"
