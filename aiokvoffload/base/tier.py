"""The contract of a secondary tier: what lies below CPU memory and reaches the GPU through it."""

import enum
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from aiokvoffload.base.events import OffloadingEvent
from aiokvoffload.base.keys import OffloadKey

ChunkViews = Sequence[memoryview]
"""One chunk's bytes: a page-aligned buffer of its payload per worker, in rank order."""


class StoreOutcome(enum.Enum):
    """What became of one key of a store."""

    STORED = "stored"
    PRESENT = "present"
    """It was resident already, or another store of it was under way and succeeded."""
    REFUSED = "refused"
    """There was no room, or the tier declined it; nothing is wrong."""
    FAILED = "failed"


class LoadOutcome(enum.Enum):
    """What became of one key of a load; only after `LOADED` do its buffers hold its bytes."""

    LOADED = "loaded"
    MISS = "miss"
    CORRUPT = "corrupt"
    """What was read is not what was stored; the tier has forgotten the key (I5)."""
    FAILED = "failed"


class SecondaryTier(ABC):
    """Keeps chunks by key. Asynchronous, batched, with an outcome for each key; nobody polls.

    Every call belongs to the loop on which the tier was opened. `store` and `load` return when nothing of the tier
    touches the buffers any more, and not before; so nobody cancels them: who has a deadline awaits them in a task of
    their own, and leaves buffers alone until that task has ended, however late (I2).

    Attributes:
        name: of this tier, for events, results and statistics.
        medium: kind of storage, `"DISK"` say.
    """

    name: str
    medium: str

    @abstractmethod
    async def open(self) -> None:
        """Get ready to serve; what was kept from an earlier run may become known later, while calls are served.

        Raises:
            TierError: it cannot be used; the message says why and what to do.
        """

    @abstractmethod
    def contains(self, keys: Sequence[OffloadKey]) -> Sequence[bool]:
        """Whether each key can be loaded, as far as is known here; advice, no promise (I3)."""

    @abstractmethod
    async def store(self, keys: Sequence[OffloadKey], views: Sequence[ChunkViews]) -> Sequence[StoreOutcome]:
        """Keep chunks. A key is loadable only after its last byte is safe by the tier's own standard (I4).

        Args:
            keys: distinct, in chain order.
            views: of each key the buffers to read; not to be written until the call has returned.

        Returns:
            The outcome of each key. Failures are outcomes, not exceptions.

        Raises:
            ClosedError: the tier is closed.
            ArgumentError: the arguments do not fit together.
        """

    @abstractmethod
    async def load(self, keys: Sequence[OffloadKey], views: Sequence[ChunkViews]) -> Sequence[LoadOutcome]:
        """Bring chunks back, verified (I5).

        Args:
            keys: distinct, in chain order.
            views: of each key the buffers to fill; their contents mean nothing unless its outcome is `LOADED`.

        Returns:
            The outcome of each key. Failures are outcomes, not exceptions.

        Raises:
            ClosedError: the tier is closed.
            ArgumentError: the arguments do not fit together.
        """

    @abstractmethod
    async def reset(self) -> int:
        """Forget every key, for good; returns how many. Stores under way leave no trace, and are `REFUSED`."""

    async def probe(self) -> None:  # noqa: B027 - not every storage has more to say than that it does not raise
        """Find out whether the storage answers; asked before a tier that had failed is used again.

        Whatever it raises, or being late, says that it does not. Unless this is overridden, every tier answers.
        """

    @abstractmethod
    def take_events(self) -> list[OffloadingEvent]:
        """The changes of what the tier holds since the last call, in the order they became true (I9)."""

    def on_events(self, callback: Callable[[], None]) -> None:  # noqa: B027 - calls that end are occasions too
        """Call `callback()`, on the loop, when there are events to take and there were none before.

        Unless this is overridden, events are taken when a call of this tier ends.
        """

    def resident_keys(self) -> Iterator[Sequence[OffloadKey]] | None:
        """The keys that can be loaded, part by part, as in `OffloadingManager.resident_keys`.

        Returns:
            `None`, and that is so unless it is overridden, where that is not known here.
        """
        return None

    def check_integrity(self) -> None:  # noqa: B027 - not every storage has something to add up
        """Check that what the tier counts adds up; nothing is checked unless this is overridden.

        Raises:
            InternalError: it does not.
        """

    @abstractmethod
    def statistics(self) -> Any:
        """A frozen record of counts; `pools` (`PoolStatistics`), `policy`, `evicted` and `cleared` become metrics."""

    @abstractmethod
    async def aclose(self) -> None:
        """Accept nothing more, end what is under way, and leave nothing to recover.

        Raises:
            AbandonedError: a time-out passed first; the message lists what was left.
        """


@dataclass(frozen=True, slots=True)
class TierShape:
    """What a tier has to keep.

    Attributes:
        chunk_bytes: for each KV-cache group the payload of one chunk on one worker: the length of a buffer.
        num_workers: how many buffers a chunk has.
    """

    chunk_bytes: tuple[int, ...]
    num_workers: int


TierFactory = Callable[[TierShape], SecondaryTier]
"""Makes a tier for chunks of this shape; called once, on a thread."""
