"""What subscribers are told, and what the bus says of itself. Records; nothing here changes anything."""

import enum
from dataclasses import dataclass
from typing import NamedTuple

from aiokvoffload.base import OffloadingEvent, OffloadKey


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkMetadata:
    """What a router may want to know of a chunk beyond its key; the library only hands it on.

    Attributes:
        token_ids: the tokens that the chunk covers.
        block_size: tokens in one block.
        parent_hash: hash of the chunk before it, `None` for the head of a chain.
        lora_id: number of the adapter, where there is one.
        lora_name: its name.
    """

    token_ids: tuple[int, ...] = ()
    block_size: int = 0
    parent_hash: bytes | None = None
    lora_id: int | None = None
    lora_name: str | None = None


class EventRecord(NamedTuple):
    """One event and its place in the bus's order.

    Attributes:
        sequence: its number; numbers have no holes.
        event: what happened.
        metadata: of each key what was attached to it, or nothing if nothing was attached to any.
    """

    sequence: int
    event: OffloadingEvent
    metadata: tuple[ChunkMetadata | None, ...] = ()


class GapRecord(NamedTuple):
    """The subscriber misses the records `first` to `last`, both included: it needs a snapshot to be exact again."""

    first: int
    last: int


class SlowPolicy(enum.Enum):
    """What becomes of a subscriber that lags as many records behind as it may."""

    DROP_OLDEST = "drop_oldest"
    """It is told which records it misses, and goes on behind them."""
    DISCONNECT = "disconnect"
    """Its iteration ends with `LaggedError`, which says where to resume."""
    BLOCK = "block"
    """New transfers wait for it, each time for a bounded while. Who does not catch up by then is waited for no more
    until it has, and loses what is older than the bus's history."""


@dataclass(frozen=True, slots=True)
class SubscriptionStatistics:
    """One subscriber.

    Attributes:
        name: as given when it subscribed.
        policy: what becomes of it when it is slow.
        lag: records published that it has not been given.
        dropped: records that it was too slow for; none of those that were gone when it subscribed.
    """

    name: str
    policy: SlowPolicy
    lag: int
    dropped: int


@dataclass(frozen=True, slots=True)
class EventBusStatistics:
    """Counts of an event bus.

    Attributes:
        published: records so far.
        subscribers: subscribers now.
        dropped: records missed over all subscribers, past ones included.
        kept: records in the history.
        disconnected: subscribers that were ended because they were slow.
        congested_waits: times that new transfers have waited for a subscriber.
        metadata_keys: keys that something is attached to.
        subscriptions: each subscriber.
    """

    published: int
    subscribers: int
    dropped: int
    kept: int = 0
    disconnected: int = 0
    congested_waits: int = 0
    metadata_keys: int = 0
    subscriptions: tuple[SubscriptionStatistics, ...] = ()


@dataclass(frozen=True, slots=True)
class TierSnapshot:
    """The keys that one tier holds.

    Attributes:
        medium: kind of storage.
        tier: its name.
        parts: the keys, in parts of some thousands, so that nobody need handle a million at once.
    """

    medium: str
    tier: str
    parts: tuple[tuple[OffloadKey, ...], ...]

    def __len__(self) -> int:
        return sum(map(len, self.parts))


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All keys that are resident once record `sequence` is true; go on with `subscribe(after=sequence)`.

    A tier that cannot say what it holds is not among the `tiers`.
    """

    sequence: int
    tiers: tuple[TierSnapshot, ...]

    def __str__(self) -> str:
        counts = ", ".join(f"{tier.tier} {len(tier)}" for tier in self.tiers)
        return f"snapshot at {self.sequence}: {counts}"
