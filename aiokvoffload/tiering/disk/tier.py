"""The disk tier: its life, its calls, its figures. What becomes of chunks is each pool's affair."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial

from aiokvoffload.base import (
    ChunkViews,
    LoadOutcome,
    LookupResult,
    OffloadingEvent,
    OffloadKey,
    SecondaryTier,
    StoreOutcome,
    TierShape,
)
from aiokvoffload.cache.event_log import EventLog
from aiokvoffload.errors import AbandonedError, ArgumentError, ClosedError, TierError
from aiokvoffload.tiering.arguments import TierArguments
from aiokvoffload.tiering.disk.blocking import in_thread
from aiokvoffload.tiering.disk.calls import DiskCalls, QueuedCalls
from aiokvoffload.tiering.disk.config import DiskConfig
from aiokvoffload.tiering.disk.live import LiveDisk, close_opened, owner_of
from aiokvoffload.tiering.disk.opening import open_disk
from aiokvoffload.tiering.disk.rows import MAX_KEY_BYTES
from aiokvoffload.tiering.disk.shelf import Shelf
from aiokvoffload.tiering.disk.statistics import DiskStatistics

DISK_MEDIUM = "DISK"
LAST_WORDS_S = 0.1


class DiskTier(SecondaryTier):
    """Chunks in preallocated files on local disks, checked on every load, found again after a restart or a crash.

    Args:
        config: where, how much, and for which namespace.
        shape: what a chunk is.
        calls: how the operating system is asked; for tests.

    Raises:
        ConfigError: the shape has no group or no worker.
    """

    medium = DISK_MEDIUM

    def __init__(self, config: DiskConfig, shape: TierShape, *, calls: DiskCalls | None = None) -> None:
        self.name = config.name
        self._config, self._shape, self._calls = config, shape, calls or QueuedCalls()
        self._arguments = TierArguments(shape.chunk_bytes, shape.num_workers)
        self._events = EventLog(
            self.medium, self.name, num_groups=len(shape.chunk_bytes), max_events=config.max_pending_events
        )
        self._live: LiveDisk | None = None
        self._is_open = False
        self._calls_in_flight = self._pending_stores = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._closing = asyncio.Lock()

    async def open(self) -> None:
        """Open the directories and serve; rows of an earlier run become known in the background.

        Raises:
            TierError: a directory cannot be used, or the system gives too few threads; nothing is left open. Or the
                tier was opened before.
        """
        if self._live is not None:
            raise TierError(f"tier {self.name!r} was opened before: make another one")
        opening = partial(open_disk, self._config, self._shape, self._calls)
        owner = owner_of(self._config)
        opened = await in_thread("aiokvoffload-disk-open", opening, undo=close_opened, owner=owner)
        live = LiveDisk(self._config, opened, self._calls, self._events)
        try:
            live.start()
        except BaseException:
            await live.wait_ended()
            raise
        self._live, self._is_open = live, True

    async def wait_recovered(self) -> None:
        """Return once every row of an earlier run is known; nobody needs to wait.

        Raises:
            ClosedError: the tier is not open.
        """
        await self._opened().recovered.wait()

    def contains(self, keys: Sequence[OffloadKey]) -> Sequence[bool]:
        """Whether each key can be loaded; during recovery, as far as rows have been read."""
        self._arguments.require_keys(keys)
        if self._live is None or not self._is_open:
            return [False] * len(keys)
        shelf_of = self._live.shelf_of
        return [shelf_of(key).cache.lookup(key) is LookupResult.HIT for key in keys]

    async def store(self, keys: Sequence[OffloadKey], views: Sequence[ChunkViews]) -> Sequence[StoreOutcome]:
        """Write chunks. They are loadable when that has ended; after a crash, once their rows are committed."""
        live = self._opened()
        self._arguments.require(keys, views, writable=False)
        if (longest_bytes := max(map(len, keys), default=0)) > MAX_KEY_BYTES:
            raise ArgumentError(f"keys must be at most {MAX_KEY_BYTES} bytes long, got {longest_bytes}")
        accepted = min(len(keys), self._config.max_pending_stores - self._pending_stores)
        live.shared.counts.dropped += len(keys) - accepted
        async with self._in_flight():
            self._pending_stores += accepted
            try:
                outcomes = await live.by_pool(Shelf.store, keys[:accepted], views[:accepted])
            finally:
                self._pending_stores -= accepted
        stored = list(map(outcomes.__getitem__, keys[:accepted]))
        return stored + [StoreOutcome.REFUSED] * (len(keys) - accepted)

    async def load(self, keys: Sequence[OffloadKey], views: Sequence[ChunkViews]) -> Sequence[LoadOutcome]:
        """Read chunks and check them."""
        live = self._opened()
        self._arguments.require(keys, views, writable=True)
        async with self._in_flight():
            outcomes = await live.by_pool(Shelf.load, keys, views)
        return list(map(outcomes.__getitem__, keys))

    async def reset(self) -> int:
        """Forget every key, and return when no restart can bring one back.

        It waits as long as the index cannot be written, to a full disk say; keys are forgotten here at once.

        Raises:
            TierError: the tier was closed before that.
        """
        live = self._opened()
        async with self._in_flight():
            return await live.reset()

    async def probe(self) -> None:
        """Read a page of every file.

        Raises:
            TierError: it cannot be read, or the index cannot be written.
        """
        live = self._opened()
        async with self._in_flight():
            await live.probe()

    def take_events(self) -> list[OffloadingEvent]:
        """The changes since the last call; recovered keys are among them. Only so many are kept as configured."""
        return self._events.take()

    def on_events(self, callback: Callable[[], None]) -> None:
        """Call `callback()` when there are events to take; recovery has some, long before any call."""
        self._events.on_first(callback)

    def resident_keys(self) -> Iterator[Sequence[OffloadKey]]:
        """The keys that can be loaded, part by part; during recovery, as far as rows have been read."""
        for shelf in self._live.shelves if self._live else ():
            yield from shelf.cache.pool.readable_keys()

    def statistics(self) -> DiskStatistics:
        """Slots by state, what is under way, and the fates of keys so far.

        Raises:
            ClosedError: the tier was never opened.
        """
        if self._live is None:
            raise ClosedError(f"tier {self.name!r} was never open")
        return self._live.statistics(self._calls_in_flight)

    def check_integrity(self) -> None:
        """Check that the slots of every pool add up, and are held by exactly the calls under way (I7).

        Raises:
            InternalError: it does not hold.
        """
        for shelf in self._live.shelves if self._live else ():
            shelf.check_integrity()

    async def aclose(self) -> None:
        """Wait for all calls, commit all rows, close the files and let go of the directories.

        What is not done by `close_timeout_s` is abandoned: the directories stay this process's own, and are let go of
        by the last thread that comes back, if it ever does.
        """
        self._is_open = False
        async with self._closing:
            if self._live is None or self._live.stopping:
                return
            live, loop = self._live, asyncio.get_running_loop()
            deadline_s = loop.time() + self._config.close_timeout_s
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(deadline_s):
                    await self._idle.wait()
            left = f"{self._calls_in_flight} calls, {live.describe_left()}"
            live.stop()
            try:
                # What the threads were given last needs a moment, however late it is already.
                async with asyncio.timeout_at(max(deadline_s, loop.time() + LAST_WORDS_S)):
                    await live.wait_ended()
            except TimeoutError:
                if live.has_ended:  # a loop that was kept from its work has not heard of it yet
                    return
                raise AbandonedError(
                    f"tier {self.name!r}: after {self._config.close_timeout_s} s there was left: {left}"
                ) from None

    async def wait_ended(self) -> None:
        """After a close that was abandoned: return once the last thread is back, and the directories are others'."""
        if self._live is not None:
            await self._live.wait_ended()

    def __repr__(self) -> str:
        state = "open" if self._is_open else "closed"
        shelves = self._live.shelves if self._live else ()
        return f"DiskTier({self.name!r}, {state}, {self._calls_in_flight} calls, {shelves!r})"

    def _opened(self) -> LiveDisk:
        if self._live is None or not self._is_open:
            raise ClosedError(f"tier {self.name!r} is not open")
        return self._live

    @contextlib.asynccontextmanager
    async def _in_flight(self) -> AsyncIterator[None]:
        self._calls_in_flight += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._calls_in_flight -= 1
            if not self._calls_in_flight:
                self._idle.set()
