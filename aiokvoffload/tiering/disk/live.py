"""An open disk tier: its threads, its pools, and how they end. Lives on the loop on which the tier was opened."""

import asyncio
import contextlib
import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import TypeVar

from aiokvoffload.base import ChunkViews, EventKind, OffloadKey, RemovalReason
from aiokvoffload.cache.chains import GROUP_SUFFIX, group_suffix
from aiokvoffload.cache.discard import DiscardPile
from aiokvoffload.cache.event_log import EventLog
from aiokvoffload.cpu.threads import Handover
from aiokvoffload.errors import TierError
from aiokvoffload.tiering.disk.calls import DiskCalls
from aiokvoffload.tiering.disk.config import DiskConfig
from aiokvoffload.tiering.disk.io_threads import ExitCount, IoThreads
from aiokvoffload.tiering.disk.opening import OpenedDisk
from aiokvoffload.tiering.disk.ranks import Ranks
from aiokvoffload.tiering.disk.recovery import Recovery
from aiokvoffload.tiering.disk.row_writer import RowChange, RowWriter
from aiokvoffload.tiering.disk.rows import ChainRun
from aiokvoffload.tiering.disk.shelf import SharedParts, Shelf
from aiokvoffload.tiering.disk.slot_file import SlotFile
from aiokvoffload.tiering.disk.statistics import DiskStatistics

logger = logging.getLogger(__name__)

Outcome = TypeVar("Outcome")
PoolCall = Callable[[Shelf, Sequence[OffloadKey], Sequence[ChunkViews]], Awaitable[dict[OffloadKey, Outcome]]]

_SLICE = 1000
"""Entries that the loop lets go of in one go (I10)."""


class LiveDisk:
    """What serves from `open` to `aclose`; nothing does before `start`.

    Args:
        config: of the tier.
        opened: what was opened; it is closed by the last thread that ends.
        calls: how the operating system is asked.
        events: of the tier.

    Attributes:
        shared: what the pools have in common; to be read only.
        shelves: the pools; to be read only.
        recovered: set once all rows of an earlier run are known.
        stopping: whether `stop` was called.
        has_ended: whether every thread has ended, as the last one says; the loop may not have heard of it.
    """

    def __init__(self, config: DiskConfig, opened: OpenedDisk, calls: DiskCalls, events: EventLog) -> None:
        self._opened, self._policy = opened, config.policy
        self._handover = Handover()
        self._handover.bind(asyncio.get_running_loop())
        self.recovered, self._ended = asyncio.Event(), asyncio.Event()
        self.stopping = self.has_ended = False
        self._pile = DiscardPile()
        self._resets: set[asyncio.Future[None]] = set()
        self._exits = ExitCount(owner_of(config), self._release)
        threads = IoThreads(config.threads)
        self._writer = RowWriter(
            opened.rows,
            calls=calls,
            handover=self._handover,
            retry_s=config.retry_s,
            on_trouble=self._wake,
        )
        self.shared = SharedParts(
            threads,
            self._writer,
            self._handover,
            events=events,
            ranks=Ranks(opened.last_rank),
            num_threads=config.threads,
            verify=config.verify,
        )
        parts = zip(opened.storages, opened.caches, strict=True)
        self.shelves = [Shelf(storage, cache, self.shared) for storage, cache in parts]
        self._shelf_of = {
            group_suffix(group_idx): shelf
            for shelf, storage in zip(self.shelves, opened.storages, strict=True)
            for group_idx in storage.pool.groups
        }
        self._chain = (-1, -1)  # of the row adopted last: its number in the index, and the policy's for it
        self._keeps_unread = False  # rows that could be read and were not taken over are a later run's
        self._recovery = Recovery(
            opened.reader,
            opened.rows.path,
            self._handover,
            retry_s=config.retry_s,
            adopt=self._adopt,
            on_end=self._end_recovery,
        )

    def start(self) -> None:
        """Start the threads.

        Raises:
            TierError: the system gives no more. Those that were started end, and close what was opened.
        """
        try:
            for part in (self.shared.threads, self._writer, self._recovery):
                part.start(self._exits)
        except BaseException:
            self.stop()
            raise
        finally:
            self._exits.all_are_started()

    def shelf_of(self, key: OffloadKey) -> Shelf:
        """The pool that a key's chunk belongs to."""
        return self._shelf_of[key[GROUP_SUFFIX]]

    async def by_pool(
        self, call: PoolCall[Outcome], keys: Sequence[OffloadKey], views: Sequence[ChunkViews]
    ) -> dict[OffloadKey, Outcome]:
        """Make one call of each pool concerned, for its keys; the outcome of each key."""
        if len(self.shelves) == 1:
            return await call(self.shelves[0], keys, views)
        parts: dict[Shelf, dict[OffloadKey, ChunkViews]] = {}
        for key, view in zip(keys, views, strict=True):
            parts.setdefault(self.shelf_of(key), {})[key] = view
        made = (call(shelf, list(part), list(part.values())) for shelf, part in parts.items())
        return {key: outcome for outcomes in await asyncio.gather(*made) for key, outcome in outcomes.items()}

    async def reset(self) -> int:
        """Forget every key; returns how many were readable once that is committed.

        Raises:
            TierError: the tier was closed before.
        """
        cleared = sum(shelf.reset(self._pile) for shelf in self.shelves)
        self._recovery.stop()
        self._keeps_unread = False
        if self.recovered.is_set():
            self._retire_unread()
        self.shared.events.add(EventKind.CLEARED, (), RemovalReason.RESET)
        self.shared.counts.cleared += cleared
        self._shed()
        committed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._resets.add(committed)
        self._writer.put(RowChange(clears=True, on_committed=partial(self._end_reset, committed)))
        await asyncio.shield(committed)
        return cleared

    async def probe(self) -> None:
        """Read a page of every file, on an I/O thread.

        Raises:
            TierError: one cannot be read, or the index cannot be written.
        """
        ending: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        files = [file for storage in self._opened.storages for file in storage.files]
        self.shared.threads.load(partial(self._probe, files, ending))
        if trouble := self._writer.trouble or await asyncio.shield(ending):
            raise TierError(trouble)

    def statistics(self, calls_in_flight: int) -> DiskStatistics:
        """Counts of all parts."""
        waiting_loads, waiting_stores = self.shared.threads.waiting
        return DiskStatistics(
            pools=tuple(shelf.cache.pool.statistics() for shelf in self.shelves),
            is_direct=all(file.is_direct for storage in self._opened.storages for file in storage.files),
            recovering=not self.recovered.is_set(),
            trouble=self._writer.trouble or self._recovery.trouble,
            calls_in_flight=calls_in_flight,
            waiting_loads=waiting_loads,
            waiting_stores=waiting_stores,
            waiting_rows=self._writer.waiting,
            commits=self._writer.commits,
            failed_commits=self._writer.failures,
            lost_indexes=self._opened.lost_indexes,
            policy=self._policy,
            **asdict(self.shared.counts),
        )

    def describe_left(self) -> str:
        """What has not ended, for people."""
        loads, stores = self.shared.threads.waiting
        return f"{loads} reads and {stores} writes waiting for a thread, {self._writer.waiting} changes of rows"

    def stop(self) -> None:
        """Have every thread end after what was given to it; returns at once."""
        self.stopping = True
        for shelf in self.shelves:
            shelf.end()
        for committed in self._resets:
            committed.set_exception(
                TierError("the tier was closed before a reset was committed: old keys may come back")
            )
        self._resets.clear()
        self._recovery.stop()
        self.shared.threads.stop()
        self._writer.stop()

    async def wait_ended(self) -> None:
        """Return once every thread has ended, and the directories are others' to use."""
        await self._ended.wait()

    def _release(self) -> None:
        """On the last thread that ends."""
        try:
            close_opened(self._opened)
        finally:
            self.has_ended = True
            self._handover.post(self._ended.set)

    def _wake(self) -> None:
        for shelf in self.shelves:
            shelf.wake()

    def _adopt(self, runs: Sequence[ChainRun]) -> None:
        """Rows of one store, though they come in several batches, are one chain again."""
        for run in runs:
            if run.chain != self._chain[0]:
                self._chain = run.chain, next(self.shared.chain_numbers)
            try:
                self.shelves[run.pool].adopt(run, self._chain[1])
            except Exception:  # the rows are not to blame
                logger.exception("%d chunks of an earlier run are not taken over, but kept", len(run.keys))
                self._keeps_unread = True

    def _end_recovery(self) -> None:
        self.recovered.set()
        self._retire_unread()

    def _retire_unread(self) -> None:
        if self.stopping or self._keeps_unread:
            return
        if sum(shelf.retire_unread(_SLICE) for shelf in self.shelves):
            asyncio.get_running_loop().call_soon(self._retire_unread)

    def _end_reset(self, committed: "asyncio.Future[None]") -> None:
        for shelf in self.shelves:
            shelf.thaw()
        if committed in self._resets:
            self._resets.remove(committed)
            committed.set_result(None)

    def _shed(self) -> None:
        self._pile.shed(_SLICE)
        if len(self._pile):
            asyncio.get_running_loop().call_soon(self._shed)

    def _probe(self, files: Sequence[SlotFile], ending: "asyncio.Future[str]") -> None:
        trouble = ""
        for file in files:
            try:
                file.probe()
            except OSError as error:
                trouble = f"{file.path} cannot be read: {error.strerror}"
        self._handover.post(partial(_settle, ending, trouble))


def owner_of(config: DiskConfig) -> str:
    """What to call a tier where its threads are spoken of."""
    return f"tier {config.name!r} in {os.fspath(config.directories[0])}"


def close_opened(opened: OpenedDisk) -> None:
    """Close what a tier has opened, as far as it is open still."""
    with contextlib.ExitStack() as undo:
        undo.push(opened.resources)
        undo.callback(opened.rows.close)
        opened.reader.close()


def _settle(ending: "asyncio.Future[str]", trouble: str) -> None:
    if not ending.done():
        ending.set_result(trouble)
