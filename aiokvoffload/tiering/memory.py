"""A secondary tier in this process's own memory: for tests, and to show what a tier is. Knows no disk and no thread."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from aiokvoffload.base import (
    ChunkViews,
    EventKind,
    LoadOutcome,
    OffloadingEvent,
    OffloadKey,
    RemovalReason,
    StoreOutcome,
)
from aiokvoffload.base.tier import SecondaryTier
from aiokvoffload.cache.event_log import EventLog
from aiokvoffload.cache.pool import PoolStatistics
from aiokvoffload.errors import ClosedError, ConfigError
from aiokvoffload.tiering.arguments import TierArguments


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryTierStatistics:
    """Counts of a `MemoryTier`: chunks it has room for and holds now, and the fates of keys so far."""

    capacity: int
    resident: int
    stored: int
    evicted: int
    loaded: int
    missed: int

    @property
    def pools(self) -> tuple[PoolStatistics, ...]:
        """Chunks by state, as other tiers tell them: whatever is here may leave."""
        free = self.capacity - self.resident
        return (PoolStatistics(self.capacity, free, writing=0, pinned=0, evictable=self.resident, quarantined=0),)


class MemoryTier(SecondaryTier):
    """Keeps copies of chunks in a dictionary, the least recently used leave first.

    Args:
        num_chunks: how many it keeps.
        chunk_bytes: of each group, the payload of one chunk on one worker, in bytes.
        num_workers: buffers per chunk.
        name: of this tier.
        max_events: most events kept until they are taken.

    Raises:
        ConfigError: it would have room for nothing.
    """

    medium = "MEMORY"

    def __init__(
        self,
        num_chunks: int,
        chunk_bytes: Sequence[int],
        *,
        num_workers: int = 1,
        name: str = "memory",
        max_events: int = 10_000,
    ) -> None:
        if num_chunks < 1:
            raise ConfigError(f"num_chunks must be at least 1, got {num_chunks}")
        self.name = name
        self._num_chunks = num_chunks
        self._arguments = TierArguments(chunk_bytes, num_workers)
        self._events = EventLog(self.medium, name, num_groups=len(chunk_bytes), max_events=max_events)
        self._chunks: OrderedDict[OffloadKey, list[bytes]] = OrderedDict()
        self._is_open = False
        self._epoch = 0
        self._stored = self._evicted = self._loaded = self._missed = 0

    async def open(self) -> None:
        """Get ready; there is never anything from an earlier run."""
        self._is_open = True

    def contains(self, keys: Sequence[OffloadKey]) -> Sequence[bool]:
        """Whether each key can be loaded."""
        return [key in self._chunks for key in keys]

    async def store(self, keys: Sequence[OffloadKey], views: Sequence[ChunkViews]) -> Sequence[StoreOutcome]:
        """Copy chunks; of more than there is room for, the leading ones."""
        self._require_open()
        self._arguments.require(keys, views, writable=False)
        epoch = self._epoch
        await asyncio.sleep(0)  # as with any real tier, others get their turn before it ends
        if epoch != self._epoch:
            return [StoreOutcome.REFUSED] * len(keys)
        outcomes = [StoreOutcome.PRESENT if key in self._chunks else StoreOutcome.REFUSED for key in keys]
        stored = []
        for index, key in enumerate(keys[: self._num_chunks]):
            if key not in self._chunks:
                self._chunks[key] = [bytes(buffer) for buffer in views[index]]
                outcomes[index] = StoreOutcome.STORED
                stored.append(key)
            self._chunks.move_to_end(key)
        self._events.add(EventKind.STORED, stored)
        self._stored += len(stored)
        self._evict()
        return outcomes

    async def load(self, keys: Sequence[OffloadKey], views: Sequence[ChunkViews]) -> Sequence[LoadOutcome]:
        """Copy chunks back."""
        self._require_open()
        self._arguments.require(keys, views, writable=True)
        await asyncio.sleep(0)
        return [self._load(key, buffers) for key, buffers in zip(keys, views, strict=True)]

    async def reset(self) -> int:
        """Forget every key."""
        self._require_open()
        cleared = len(self._chunks)
        self._epoch += 1
        self._chunks.clear()
        self._events.add(EventKind.CLEARED, (), RemovalReason.RESET)
        return cleared

    def take_events(self) -> list[OffloadingEvent]:
        """The changes since the last call."""
        return self._events.take()

    def on_events(self, callback: Callable[[], None]) -> None:
        """Call `callback()` when there are events to take."""
        self._events.on_first(callback)

    def resident_keys(self) -> Iterator[Sequence[OffloadKey]]:
        """All keys, in one part."""
        yield tuple(self._chunks)

    def statistics(self) -> MemoryTierStatistics:
        """Counts so far."""
        return MemoryTierStatistics(
            capacity=self._num_chunks,
            resident=len(self._chunks),
            stored=self._stored,
            evicted=self._evicted,
            loaded=self._loaded,
            missed=self._missed,
        )

    async def aclose(self) -> None:
        """Forget everything; nothing can be under way that would have to be waited for."""
        self._is_open = False
        self._epoch += 1
        self._chunks.clear()

    def __repr__(self) -> str:
        return f"MemoryTier({self.name!r}, {len(self._chunks)} of {self._num_chunks} chunks)"

    def _require_open(self) -> None:
        if not self._is_open:
            raise ClosedError(f"tier {self.name!r} is not open")

    def _load(self, key: OffloadKey, buffers: ChunkViews) -> LoadOutcome:
        chunk = self._chunks.get(key)
        if chunk is None:
            self._missed += 1
            return LoadOutcome.MISS
        self._chunks.move_to_end(key)
        self._loaded += 1
        for buffer, payload in zip(buffers, chunk, strict=True):
            buffer[:] = payload
        return LoadOutcome.LOADED

    def _evict(self) -> None:
        excess = len(self._chunks) - self._num_chunks
        if excess > 0:
            evicted = [self._chunks.popitem(last=False)[0] for _ in range(excess)]
            self._evicted += excess
            self._events.add(EventKind.REMOVED, evicted, RemovalReason.EVICTED)
