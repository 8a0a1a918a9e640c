"""Tells subscribers what became resident and what left, in one order without holes.

Publishing is synchronous, cannot fail and never waits for a subscriber. What is told is decided by whoever publishes;
this module knows numbers, who listens, and who is slow (I9, I11).
"""

import asyncio
import contextlib
import logging
from collections.abc import Collection, Iterable, Mapping

from aiokvoffload.base import EventKind, OffloadingEvent, OffloadKey, RemovalReason
from aiokvoffload.errors import ArgumentError, ClosedError
from aiokvoffload.events.metadata import MetadataBook
from aiokvoffload.events.records import ChunkMetadata, EventBusStatistics, EventRecord, SlowPolicy, Snapshot
from aiokvoffload.events.snapshot import ResidentSource, gather_snapshot
from aiokvoffload.events.subscription import Archive, Subscription
from aiokvoffload.events.timeline import Timeline

logger = logging.getLogger(__name__)

_UNWRITTEN_RECORDS = 1_000_000
"""Numbers that are left out behind the latest one in an archive: more than wait to be written."""


class EventBus:
    """One order of events, the latest of them, and those who listen. It belongs to the thread of one loop.

    Args:
        max_pending: records that are kept, and that a subscriber may lag behind unless it asks for a lower bound. If
            records have more keys than 32 on average, fewer are kept.
        first_sequence: number of the first event. A service takes the microsecond at which it was made, so that no
            number means two things to who outlives a process.
        block_timeout_s: how long new transfers wait for one that is slow and asked for `SlowPolicy.BLOCK`.
        max_metadata: most keys that something is attached to.

    Raises:
        ArgumentError: a bound is below 1, or another number is none.
    """

    def __init__(
        self,
        max_pending: int = 10_000,
        *,
        first_sequence: int = 0,
        block_timeout_s: float = 0.05,
        max_metadata: int = 100_000,
    ) -> None:
        _require_at_least_one("max_pending", max_pending)
        _require_at_least_one("max_metadata", max_metadata)
        if not isinstance(first_sequence, int):
            raise ArgumentError(f"first_sequence must be a whole number, got {first_sequence!r}")
        if not (isinstance(block_timeout_s, int | float) and block_timeout_s >= 0):
            raise ArgumentError(f"block_timeout_s must be at least 0, got {block_timeout_s!r}")
        self._timeline = Timeline(max_pending, first_sequence)
        self._book = MetadataBook(max_metadata)
        self._block_timeout_s = block_timeout_s
        self._subscriptions: dict[Subscription, None] = {}
        self._waiting: dict[Subscription, None] = {}
        self._strict: set[Subscription] = set()
        self._blocking: set[Subscription] = set()
        self._archive: Archive | None = None
        self._source: ResidentSource | None = None
        self._past_dropped = self._disconnected = self._congested_waits = 0
        self._room = asyncio.Event()
        self._closed = False

    @property
    def latest(self) -> int:
        """Number of the latest record; one below the first number if there is none."""
        return self._timeline.latest

    @property
    def oldest(self) -> int:
        """Number of the oldest record that is kept in memory; the next one's if none is."""
        return self._timeline.first

    @property
    def is_congested(self) -> bool:
        """Whether new transfers are to wait for a slow subscriber."""
        return bool(self._blocking) and any(each.holds_back for each in self._blocking)

    def publish(self, events: Iterable[OffloadingEvent]) -> None:
        """Number the events and hand them on. Called on the thread of the loop that subscribers run on."""
        append, book, archive = self._timeline.append, self._book, self._archive
        for event in events:
            record = append(event, book.apply(event)) if book.entries else append(event)
            if archive is not None:
                self._keep(archive, record)
        if self._waiting:
            waiting, self._waiting = self._waiting, {}
            for subscription in waiting:
                subscription.wake()
        if self._strict:
            for subscription in [each for each in self._strict if each.is_too_slow]:
                self._disconnected += 1
                subscription.disconnect()

    def begin_tiers(self, tiers: Iterable[tuple[str, str]]) -> None:
        """Say of tiers, each a medium and a name, that what an earlier process told of them is void."""
        reason = RemovalReason.RESTART
        self.publish(OffloadingEvent(EventKind.CLEARED, (), medium, tier, reason) for medium, tier in tiers)

    def subscribe(
        self,
        *,
        policy: SlowPolicy = SlowPolicy.DROP_OLDEST,
        max_pending: int | None = None,
        after: int | None = None,
        media: Collection[str] | None = None,
        name: str = "",
    ) -> Subscription:
        """Receive events: `async with bus.subscribe() as records: async for record in records: ...`.

        Args:
            policy: what becomes of this subscriber when it is slow.
            max_pending: records that it may lag behind; by default, and at most, as many as are kept, and half of them
                where transfers wait for it.
            after: begin behind this record; what is not kept any more, or has been before this bus began, is a gap. By
                default, with the next event.
            media: only events of these kinds of storage; numbers that are left out then are not missed.
            name: for statistics; figures of those without one are told by number.

        Raises:
            ArgumentError: the bound is out of its range, `after` is above `latest`, or what is given is none.
            ClosedError: the bus is closed.
        """
        if self._closed:
            raise ClosedError("subscribe: the event bus is closed")
        if not isinstance(policy, SlowPolicy):
            raise ArgumentError(f"policy must be a SlowPolicy, got {policy!r}")
        if not isinstance(name, str):
            raise ArgumentError(f"name must be text, got {name!r}")
        bound = self._bound(policy, max_pending)
        if after is not None and not (isinstance(after, int) and after <= self.latest):
            raise ArgumentError(f"after must be the number of a record, the latest is {self.latest}, got {after!r}")
        subscription = Subscription(
            self._timeline,
            name=name,
            policy=policy,
            max_pending=bound,
            media=_set_of(media),
            after=self.latest if after is None else after,
            archive=self._archive,
            on_wait=self._on_wait,
            on_read=self._room.set,
            on_close=self._on_close,
        )
        self._subscriptions[subscription] = None
        if policy is SlowPolicy.DISCONNECT:
            self._strict.add(subscription)
        elif policy is SlowPolicy.BLOCK:
            self._blocking.add(subscription)
        return subscription

    async def snapshot(self, *, media: Collection[str] | None = None) -> Snapshot:
        """All keys that are resident, and the number of the record up to which that is true.

        It is gathered over many passes of the loop, and exact nevertheless: go on with `subscribe(after=sequence)`.

        Args:
            media: only tiers of these kinds of storage.

        Raises:
            ArgumentError: the media are none.
            ClosedError: nobody is there who knows: the service is not open.
            BusyError: more was published meanwhile than is kept, several times.
        """
        if self._source is None:
            raise ClosedError("snapshot: the service that this bus belongs to is not open")
        return await gather_snapshot(self._timeline, self._source, _set_of(media))

    async def wait_room(self) -> None:
        """Return when no slow subscriber is to be waited for any more, after `block_timeout_s` at the latest."""
        if not self.is_congested:
            return
        self._congested_waits += 1
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._block_timeout_s):
                while self.is_congested:
                    self._room.clear()
                    await self._room.wait()
        for subscription in self._blocking:
            if subscription.holds_back:
                subscription.give_up()

    def attach_metadata(self, metadata: Mapping[OffloadKey, ChunkMetadata]) -> None:
        """Attach metadata to keys that are about to be stored, until the last tier has let go of them.

        Raises:
            ArgumentError: it is no mapping, a key is no bytes, or a value no `ChunkMetadata`.
        """
        if not isinstance(metadata, Mapping):
            raise ArgumentError(f"metadata must map keys to ChunkMetadata, got {metadata!r}")
        for key, each in metadata.items():
            if not isinstance(each, ChunkMetadata):
                raise ArgumentError(f"metadata must be ChunkMetadata for each key, got {each!r}")
            if not isinstance(key, bytes):
                raise ArgumentError(f"metadata must be of offload keys, which are bytes, got {key!r}")
        self._book.attach(metadata)

    def forget_metadata(self, keys: Collection[OffloadKey]) -> None:
        """Forget what is attached to those of the keys that no tier holds."""
        if self._book:
            self._book.forget_absent(keys)

    def metadata_of(self, key: OffloadKey) -> ChunkMetadata | None:
        """What is attached to a key."""
        return self._book.get(key)

    def use_archive(self, archive: Archive) -> None:
        """From now on, append all records to `archive`, and let those who resume read it.

        Raises:
            ArgumentError: something was published before, or somebody has subscribed.
        """
        timeline = self._timeline
        if self._subscriptions or timeline.next > timeline.origin or self._archive is not None:
            raise ArgumentError("use_archive: an archive begins with the first record: use it before the service opens")
        # An earlier process may have published more than it could write, and the clock may have been set back since.
        first = max(timeline.origin, archive.last + _UNWRITTEN_RECORDS if archive.last >= 0 else 0)
        self._timeline = Timeline(timeline.max_records, first)
        self._archive = archive

    def use_source(self, source: ResidentSource | None) -> None:
        """Where snapshots come from; `None` ends them."""
        self._source = source

    def close(self) -> None:
        """End every subscription after what was published; repeating it does nothing."""
        self._closed = True
        self._source = None
        for subscription in tuple(self._subscriptions):
            subscription.close()

    def statistics(self) -> EventBusStatistics:
        """Counts so far."""
        each = tuple(subscription.statistics() for subscription in self._subscriptions)
        return EventBusStatistics(
            published=self._timeline.next - self._timeline.origin,
            subscribers=len(each),
            dropped=self._past_dropped + sum(one.dropped for one in each),
            kept=len(self._timeline),
            disconnected=self._disconnected,
            congested_waits=self._congested_waits,
            metadata_keys=len(self._book),
            subscriptions=each,
        )

    def __repr__(self) -> str:
        return f"<EventBus {self._timeline!r}, {len(self._subscriptions)} subscribers>"

    def _keep(self, archive: Archive, record: EventRecord) -> None:
        try:
            archive.append(record)
        except Exception:  # an archive is somebody's own: its trouble must not reach the transfer that is told of
            logger.exception("record %d is not in the archive", record.sequence)

    def _bound(self, policy: SlowPolicy, max_pending: int | None) -> int:
        most = self._timeline.max_records
        if max_pending is None:
            return max(1, most // 2) if policy is SlowPolicy.BLOCK else most
        _require_at_least_one("max_pending", max_pending)
        if max_pending > most:
            raise ArgumentError(f"max_pending must be at most {most}, which is what the bus keeps, got {max_pending}")
        return max_pending

    def _on_wait(self, subscription: Subscription) -> None:
        self._waiting[subscription] = None
        self._room.set()

    def _on_close(self, subscription: Subscription) -> None:
        self._subscriptions.pop(subscription, None)
        self._strict.discard(subscription)
        self._blocking.discard(subscription)
        self._past_dropped += subscription.dropped
        self._room.set()


def _require_at_least_one(name: str, value: int) -> None:
    if not isinstance(value, int) or value < 1:
        raise ArgumentError(f"{name} must be a whole number of at least 1, got {value!r}")


def _set_of(media: Collection[str] | None) -> frozenset[str] | None:
    if media is None:
        return None
    # A text is a collection of its letters, and nothing is stored in a medium "C".
    if isinstance(media, str) or not isinstance(media, Collection) or not all(isinstance(each, str) for each in media):
        raise ArgumentError(f"media must be a set of names, such as {{'CPU'}}, got {media!r}")
    return frozenset(media)
