"""One pool on disk: which of its states each slot is in, and who waits for one. Lives on the loop, and never blocks it.

Threads do the reading and writing; what they bring ends here, in one call each.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import NamedTuple

from aiokvoffload.base import ChunkViews, EventKind, LoadOutcome, LookupResult, OffloadKey, RemovalReason, StoreOutcome
from aiokvoffload.cache.discard import DiscardPile
from aiokvoffload.cache.event_log import EventLog
from aiokvoffload.cache.pool import Held
from aiokvoffload.cpu.threads import Handover
from aiokvoffload.tiering.disk.batches import LoadBatch, PoolStorage, StoreBatch
from aiokvoffload.tiering.disk.io_threads import IoThreads
from aiokvoffload.tiering.disk.ranks import Ranks
from aiokvoffload.tiering.disk.row_writer import RowChange, RowWriter
from aiokvoffload.tiering.disk.rows import ChainRun, RowColumns
from aiokvoffload.tiering.disk.slot_cache import SlotCache
from aiokvoffload.tiering.disk.statistics import DiskCounts

StoreOutcomes = dict[OffloadKey, StoreOutcome]


class SharedParts:
    """What the pools of one tier have in common.

    Attributes:
        threads: read and write chunks.
        writer: writes rows.
        handover: leads from threads to the loop.
        events: of the tier.
        counts: of the tier.
        ranks: of the tier.
        chain_numbers: every call's chain has its own.
        num_threads: among which a call's chunks are divided.
        verify: whether loaded chunks are checked.
    """

    def __init__(
        self,
        threads: IoThreads,
        writer: RowWriter,
        handover: Handover,
        *,
        events: EventLog,
        ranks: Ranks,
        num_threads: int,
        verify: bool,
    ) -> None:
        self.threads, self.writer, self.handover = threads, writer, handover
        self.events, self.ranks = events, ranks
        self.counts = DiskCounts()
        self.chain_numbers = count()
        self.num_threads, self.verify = num_threads, verify


class _Write(NamedTuple):
    """A write of some keys: `own` wakes the call that began it and may be cancelled with it, `ending` any others."""

    own: "asyncio.Future[StoreOutcomes]"
    ending: "asyncio.Future[StoreOutcomes]"


@dataclass(slots=True)
class _StoreCall:
    """One call of `store`: what is given, what is known of it, and the writes it waits for, its own and others'."""

    views: dict[OffloadKey, ChunkViews]
    outcomes: StoreOutcomes = field(default_factory=dict)
    begun: list["_Write"] = field(default_factory=list)
    joined: dict[OffloadKey, "asyncio.Future[StoreOutcomes]"] = field(default_factory=dict)


class Shelf:
    """The chunks of one size.

    Args:
        storage: where they lie.
        cache: which slot each has.
        shared: what all pools of the tier use.

    Attributes:
        cache: as given; to be read only.
    """

    def __init__(self, storage: PoolStorage, cache: SlotCache, shared: SharedParts) -> None:
        self.cache = cache
        self._storage, self._shared = storage, shared
        self._turn = asyncio.Lock()  # stores reserve slots one after the other, first come, first served
        self._change: asyncio.Future[None] | None = None
        self._storing: dict[OffloadKey, asyncio.Future[StoreOutcomes]] = {}
        self._reads: list[Held] = []
        self._writes: list[Held] = []
        self._epoch = 0
        self._clearing = 0  # resets whose end is not committed
        self._is_over = False

    async def store(self, keys: Sequence[OffloadKey], views: Sequence[ChunkViews]) -> StoreOutcomes:
        """Store chunks; the outcome of each key."""
        call = _StoreCall(dict(zip(keys, views, strict=True)))
        async with self._turn:
            await self._begin_stores(call)
        for write in call.begun:
            # Not the other one behind a shield: that costs a turn of the loop, for which it lets go of the GIL.
            call.outcomes.update(await write.own)
        for key, ending in call.joined.items():
            outcome = (await asyncio.shield(ending))[key]
            call.outcomes[key] = StoreOutcome.PRESENT if outcome is StoreOutcome.STORED else outcome
        return call.outcomes

    async def load(self, keys: Sequence[OffloadKey], views: Sequence[ChunkViews]) -> dict[OffloadKey, LoadOutcome]:
        """Load chunks; the outcome of each key."""
        outcomes = dict.fromkeys(keys, LoadOutcome.MISS)
        self.cache.access(keys, next(self._shared.chain_numbers))
        held = self.cache.pool.pin_leading(keys)
        if len(held.keys) < len(keys):
            self.cache.complete_read(held)
            there = {key: view for key, view in zip(keys, views, strict=True) if self._has(key)}
            held, views = self.cache.pool.pin_leading(list(there)), list(there.values())
            self._shared.counts.missed += len(keys) - len(there)
        if held.keys:
            batch, ending = self._begin_load(held, views)
            await ending
            outcomes.update(zip(held.keys, batch.outcomes, strict=True))
        return outcomes

    def reset(self, pile: DiscardPile) -> int:
        """Forget every key; until `thaw` no slot is reserved. Returns how many were readable."""
        self._epoch += 1
        self._clearing += 1
        self._storing = {}
        self.wake()
        return self.cache.clear(pile)

    def thaw(self) -> None:
        """The rows of what a reset cleared are gone."""
        self._clearing -= 1
        self.wake()

    def wake(self) -> None:
        """Let a store that waits for slots look again."""
        if self._change is not None and not self._change.done():
            self._change.set_result(None)

    def end(self) -> None:
        """Fail what waits for slots: none will become free any more."""
        self._is_over = True
        self.wake()

    def adopt(self, run: ChainRun, chain_number: int) -> None:
        """Make rows of one chain of an earlier run readable."""
        keys = self.cache.adopt(run, chain_number)
        self._shared.events.add(EventKind.STORED, keys)
        self._shared.counts.recovered += len(keys)

    def retire_unread(self, count: int) -> bool:
        """Have rows deleted of slots that nobody has claimed; returns whether there are more."""
        self._retire(self.cache.retire_unread(count))
        return self.cache.unread_count > 0

    def check_integrity(self) -> None:
        """Check that slots add up, and are held by exactly the calls under way (I7).

        Raises:
            InternalError: it does not hold.
        """
        self.cache.check_integrity(self._reads, self._writes)

    def __repr__(self) -> str:
        return f"Shelf({self.cache!r}, {len(self._reads)} reads, {len(self._writes)} writes)"

    async def _begin_stores(self, call: "_StoreCall") -> None:
        epoch, chain_number = self._epoch, next(self._shared.chain_numbers)
        keys = list(call.views)
        absent = self._sort_out(keys, call)
        if len(absent) == len(keys):
            self.cache.access_absent(keys, chain_number)
        else:
            self.cache.access(keys, chain_number)
        while absent:
            if self._shared.writer.trouble or self._is_over:
                call.outcomes.update(self._count_failed(absent))
                return
            if self._clearing or not self.cache.pool.free.count:
                await self._wait_for_change()
                if epoch != self._epoch:
                    break
                absent = self._sort_out(absent, call)
                continue
            offered = absent[: self.cache.pool.free.count]
            begun_count = self._begin_store(offered, call, chain_number)
            absent = absent[begun_count:]
            if begun_count < len(offered):
                break
        call.outcomes.update(self._count_refused(absent))

    def _sort_out(self, keys: Sequence[OffloadKey], call: "_StoreCall") -> list[OffloadKey]:
        """Keys that are to be stored; what is here is present, and another's store of a key is joined (fault 18)."""
        absent = list(self.cache.absent(keys))
        if len(absent) == len(keys):
            return absent
        for key in keys:
            match self.cache.lookup(key):
                case LookupResult.HIT:
                    call.outcomes[key] = StoreOutcome.PRESENT
                    self._shared.counts.present += 1
                case LookupResult.HIT_PENDING:
                    call.joined[key] = self._storing[key]
        return absent

    def _has(self, key: OffloadKey) -> bool:
        return self.cache.lookup(key) is LookupResult.HIT

    async def _wait_for_change(self) -> None:
        self._change = asyncio.get_running_loop().create_future()
        try:
            await self._change
        finally:
            self._change = None

    def _begin_store(self, keys: Sequence[OffloadKey], call: "_StoreCall", chain_number: int) -> int:
        """Begin to write a leading part of the keys; returns how many."""
        shared = self._shared
        reserved = self.cache.reserve(keys, call.views.keys(), chain_number)
        if reserved is None:
            return 0
        held, evicted, retiring = reserved
        shared.counts.evicted += len(evicted)
        shared.events.add(EventKind.REMOVED, evicted[::-1], RemovalReason.EVICTED)
        self._retire(retiring.slots)
        self._writes.append(held)
        loop = asyncio.get_running_loop()
        write = _Write(loop.create_future(), loop.create_future())
        self._storing.update(dict.fromkeys(held.keys, write.ending))
        call.begun.append(write)
        batch = StoreBatch(self._storage, held.slots, held.keys, [call.views[key] for key in held.keys])
        end = partial(self._end_store, batch, held, write, self._epoch)
        for job in batch.jobs(shared.num_threads, partial(shared.handover.post, end)):
            shared.threads.store(job)
        return len(held.keys)

    def _end_store(self, batch: StoreBatch, held: Held, write: _Write, epoch: int) -> None:
        self._writes.remove(held)
        if epoch != self._epoch:
            self.cache.abandon_write(held)
            outcomes = self._count_refused(held.keys)
        else:
            outcomes = self._complete_store(batch, held)
            for key in held.keys:
                self._storing.pop(key, None)
        self.wake()
        for future in write:
            if not future.done():
                future.set_result(outcomes)

    def _complete_store(self, batch: StoreBatch, held: Held) -> StoreOutcomes:
        shared, cache, pool = self._shared, self.cache, self._storage.pool
        written, checksums, failed = batch.written()
        ranks = shared.ranks.take(len(written.keys))
        cache.set_checksums(written.slots, checksums)
        cache.complete_write(held, failed)
        if written.keys:
            shared.writer.put(RowChange(pool.index, RowColumns(written.slots, written.keys, ranks, checksums)))
            shared.events.add(EventKind.STORED, written.keys)
        shared.counts.stored += len(ranks)
        shared.counts.stored_bytes += len(ranks) * pool.chunk_bytes * pool.num_workers
        return dict.fromkeys(written.keys, StoreOutcome.STORED) | self._count_failed(failed)

    def _begin_load(self, held: Held, views: Sequence[ChunkViews]) -> tuple[LoadBatch, "asyncio.Future[None]"]:
        shared = self._shared
        self._reads.append(held)
        expected = self.cache.checksums(held.slots) if shared.verify else None
        batch = LoadBatch(self._storage, held.slots, held.keys, views, expected=expected)
        ending: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        end = partial(self._end_load, batch, held, ending, self._epoch)
        for job in batch.jobs(shared.num_threads, partial(shared.handover.post, end)):
            shared.threads.load(job)
        return batch, ending

    def _end_load(self, batch: LoadBatch, held: Held, ending: "asyncio.Future[None]", epoch: int) -> None:
        counts, pool = self._shared.counts, self._storage.pool
        self._reads.remove(held)
        loaded, corrupt = (batch.outcomes.count(outcome) for outcome in (LoadOutcome.LOADED, LoadOutcome.CORRUPT))
        counts.loaded += loaded
        counts.corrupt += corrupt
        counts.failed_loads += len(held.keys) - loaded - corrupt
        counts.loaded_bytes += loaded * pool.chunk_bytes * pool.num_workers
        if epoch != self._epoch:
            self.cache.abandon_read(held)
            self.wake()
        else:
            self._complete_load(batch, held)
        if not ending.done():
            ending.set_result(None)

    def _complete_load(self, batch: LoadBatch, held: Held) -> None:
        """End a read; keys that could not be read, or were not what was stored, are forgotten (I4, I5)."""
        useless: set[OffloadKey] = set()
        if batch.outcomes.count(LoadOutcome.LOADED) < len(held.keys):
            pairs = zip(held.keys, batch.outcomes, strict=True)
            useless = {key for key, outcome in pairs if outcome is not LoadOutcome.LOADED}
            lost = self.cache.forget(held, useless)
            self._shared.events.add(EventKind.REMOVED, lost.keys, RemovalReason.FAILED)
            self._retire(lost.slots)
        self.cache.complete_read(held)
        if useless:
            self.wake()

    def _retire(self, slots: Sequence[int]) -> None:
        """Free slots once their rows are deleted and nobody reads them any more."""
        if slots:
            pool_index = self._storage.pool.index
            freed: Callable[[], None] = partial(self._free, slots)
            self._shared.writer.put(RowChange(pool_index, deletes=slots, on_committed=freed))

    def _free(self, slots: Sequence[int]) -> None:
        self.cache.free(slots)
        self.wake()

    def _count_refused(self, keys: Sequence[OffloadKey]) -> StoreOutcomes:
        self._shared.counts.refused += len(keys)
        return dict.fromkeys(keys, StoreOutcome.REFUSED)

    def _count_failed(self, keys: Sequence[OffloadKey]) -> StoreOutcomes:
        self._shared.counts.failed_stores += len(keys)
        return dict.fromkeys(keys, StoreOutcome.FAILED)
