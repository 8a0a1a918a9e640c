"""Slots: which key has which, and who forbids that it goes. Knows no order among keys and no bytes.

A slot is in one of five states: *free*; *writing* (its key has a slot, but its bytes have not arrived); *resident
pinned* and *resident evictable* (readable, with or without somebody reading); *quarantined* (its key is gone, but a
copy may still touch it). `free + writing + pinned + evictable + quarantined = capacity`, always (I7).
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, takewhile
from itertools import count as counted
from typing import NamedTuple

from aiokvoffload.base import OffloadKey
from aiokvoffload.cache.free_runs import FreeRuns
from aiokvoffload.cache.named import make_named
from aiokvoffload.cache.slot_index import make_slot_index
from aiokvoffload.cache.slot_marks import SlotMarks
from aiokvoffload.cache.slot_readers import SlotReaders
from aiokvoffload.errors import ArgumentError, InternalError


class Held(NamedTuple):
    """The slots that one transfer touches, and the key that each had when the transfer was prepared."""

    slots: Sequence[int]
    keys: Sequence[OffloadKey]


@dataclass(frozen=True, slots=True)
class PoolStatistics:
    """How many slots are in which state; they add up to `capacity`.

    Those that are `growing` are none of them: slots that are still to come.
    """

    capacity: int
    free: int
    writing: int
    pinned: int
    evictable: int
    quarantined: int
    growing: int = 0


class ChunkPool:
    """The slots of one tier and chunk size.

    A transfer *holds* the slots it touches: a slot has one writer, or any number of readers. A held slot is never
    handed out again: if its key goes, it is quarantined until the last hold ends.

    Args:
        num_slots: how many there are, or will be.
        grows: whether there is none before `grow` says so.

    Attributes:
        capacity: most slots that there can be; to be read only.
        free: slots that can be reserved without evicting anything; not to be changed from outside.
        index: the slot of every key that is readable or being written; not to be changed from outside.
        writing: the slots that are being written, but for quarantined ones; not to be changed from outside.
        held_back: slots in use from an earlier run, which count as quarantined; not to be changed from outside.
        removals: how often keys have lost their slots; while it stays the same, who had a slot has it still.

    Raises:
        ArgumentError: `num_slots` is below 1.
    """

    __slots__ = (
        "_growing",
        "_orphaned_reads",
        "_orphaned_writes",
        "_readers",
        "_ready",
        "capacity",
        "free",
        "held_back",
        "index",
        "removals",
        "writing",
    )

    def __init__(self, num_slots: int, *, grows: bool = False) -> None:
        if num_slots < 1:
            raise ArgumentError(f"num_slots must be at least 1, got {num_slots}")
        self.capacity = num_slots
        self._ready = 0 if grows else num_slots
        self._growing = num_slots - self._ready
        self.free = FreeRuns(self._ready)
        self.index = make_slot_index(num_slots)
        self.writing: set[int] = set()
        self._readers = SlotReaders()
        # Together these are the quarantined slots, with those that are held back.
        self._orphaned_reads: set[int] = set()
        self._orphaned_writes: set[int] = set()
        self.held_back = SlotMarks(num_slots)
        self.removals = 0

    @property
    def pinned_count(self) -> int:
        """Slots whose keys are readable and being read."""
        return len(self._readers.counts) - len(self._orphaned_reads)

    @property
    def evictable_count(self) -> int:
        """Slots whose keys are readable and held by nobody."""
        return len(self.index) - len(self.writing) - self.pinned_count

    def grow(self, ready_slots: int, *, ended: bool) -> None:
        """There are `ready_slots` from now on, if that is more than before; none will follow if it `ended`."""
        more = min(ready_slots - self._ready, self._growing)
        if more > 0:
            self.free.extend(self._ready, self._ready + more)
            self._ready += more
            self._growing -= more
        if ended:
            self._growing = 0

    def are_free(self, slots: Collection[int]) -> bool:
        """Whether no transfer holds any of these slots."""
        writing, readers = self.writing, self._readers.counts
        return (not writing or writing.isdisjoint(slots)) and (not readers or readers.keys().isdisjoint(slots))

    def reserve(self, keys: Sequence[OffloadKey]) -> Held:
        """Give slots to absent, distinct `keys`, adjacent and increasing where it can, and hold them as being written.

        Args:
            keys: in chain order.

        Returns:
            What to give to `end_write`, in the order of `keys`.

        Raises:
            InternalError: there is no room.
        """
        return self.replace(keys, (), ())

    def replace(self, keys: Sequence[OffloadKey], evicted: Sequence[OffloadKey], slots: Sequence[int]) -> Held:
        """The same after evictable keys have left, which give up their slots.

        Raises:
            InternalError: a key to evict has not that slot, or it is held, or there is no room.
        """
        if evicted:
            if not self.are_free(slots):
                raise InternalError(f"a key is evicted while a transfer holds its slot: {self!r}")
            self._forget(evicted, slots)
        turns_over = len(slots) == len(keys) and not self.free.count
        given = sorted(slots) if turns_over else self._allocate(len(keys), slots)
        self.index.put(keys, given)
        self.writing.update(given)
        return make_named(Held, (given, keys))

    def end_write(self, held: Held) -> None:
        """End a write: its keys become readable; slots whose keys were dropped meanwhile become free.

        Raises:
            InternalError: a slot is not being written.
        """
        still_writing = len(self.writing) - len(held.slots)
        self.writing.difference_update(held.slots)
        if len(self.writing) > still_writing:
            self._end_orphaned(held.slots, len(self.writing) - still_writing)

    def pin_leading(self, keys: Sequence[OffloadKey]) -> Held:
        """Hold the slots of the leading keys that are readable, for reading; a key given twice is held twice.

        Returns:
            What to give to `unpin`.
        """
        return self.pin_found(keys, self.index.find_leading(keys))

    def pin_found(self, keys: Sequence[OffloadKey], slots: Sequence[int]) -> Held:
        """The same for the leading of `keys` whose slots, as they are now, the caller has found."""
        if self.writing and not self.writing.isdisjoint(slots):
            slots = tuple(takewhile(lambda slot: slot not in self.writing, slots))
        self._readers.add(slots)
        return make_named(Held, (slots, keys if len(slots) == len(keys) else keys[: len(slots)]))

    def unpin(self, held: Held) -> None:
        """End one read of each slot; those whose keys were dropped become free with their last reader.

        Raises:
            InternalError: a slot is not being read; nothing has changed.
        """
        left = self._readers.remove(held.slots)
        if self._orphaned_reads and (freed := self._orphaned_reads.intersection(left)):
            self._orphaned_reads -= freed
            self.free.give(freed)

    def drop(self, keys: Sequence[OffloadKey], slots: Sequence[int]) -> None:
        """Take their slots away from keys that are readable or being written; held slots are quarantined.

        Raises:
            InternalError: a key has another slot or none.
        """
        self._forget(keys, slots)
        written, read = self.writing.intersection(slots), self._readers.counts.keys() & slots
        self.writing -= written
        self._orphaned_writes |= written
        self._orphaned_reads |= read
        self.free.give(set(slots) - written - read)

    def retire(self, keys: Sequence[OffloadKey], slots: Sequence[int]) -> Held:
        """Take their distinct slots away from keys that are readable, and hold each as if it were read.

        Returns:
            What to give to `unpin`.

        Raises:
            InternalError: a key has another slot or none.
        """
        self._forget(keys, slots)
        self._readers.add(slots)
        self._orphaned_reads.update(slots)
        return Held(slots, keys)

    def hold_back(self, slots: Sequence[int]) -> None:
        """Quarantine free slots, in increasing order, which are in use from an earlier run."""
        self.free.remove(slots)
        self.held_back.add(slots)

    def adopt(self, keys: Sequence[OffloadKey], slots: Sequence[int]) -> None:
        """Give absent keys distinct slots that were held back: they are readable.

        Raises:
            InternalError: a slot is not one of these.
        """
        if not self.held_back.are_all(slots):
            raise InternalError(f"a slot is adopted that is not held back: {self!r}")
        self.held_back.remove(slots)
        self.index.put(keys, slots)

    def claim(self, count: int) -> Held:
        """Hold so many slots that were held back, or what there are, as if each were read and had lost its key.

        Returns:
            What to give to `unpin`.
        """
        slots = self.held_back.first(count)
        self.held_back.remove(slots)
        self._readers.add(slots)
        self._orphaned_reads.update(slots)
        return Held(slots, ())

    def readable_keys(self) -> Iterator[list[OffloadKey]]:
        """All keys that are not being written, part by part; each part is as it is when it is asked for."""
        for number in counted():
            part = self.index.part(number)
            if part is None:
                return
            writing = self.writing
            yield [key for key, slot in part.items() if slot not in writing] if writing else list(part)

    def clear(self) -> Sequence[dict[OffloadKey, int]]:
        """Take the slots away from all keys, in time that does not depend on their number; quarantine held slots.

        Returns:
            The dictionaries of the old index, for the caller to let go of little by little.
        """
        self._orphaned_reads = set(self._readers.counts)
        self._orphaned_writes |= self.writing
        self.free = FreeRuns(self._ready, chain(self._orphaned_reads, self._orphaned_writes, self.held_back))
        self.writing = set()
        self.removals += 1
        return self.index.clear()

    def statistics(self) -> PoolStatistics:
        """Slots by state."""
        return PoolStatistics(
            capacity=self._ready,
            free=self.free.count,
            writing=len(self.writing),
            pinned=self.pinned_count,
            evictable=self.evictable_count,
            quarantined=len(self._orphaned_reads) + len(self._orphaned_writes) + len(self.held_back),
            growing=self._growing,
        )

    def check_integrity(self, reads: Iterable[Held], writes: Iterable[Held]) -> None:
        """Check conservation (I7) slot by slot, and that slots are held by exactly these transfers.

        Raises:
            InternalError: a slot is in no state or in two, or somebody holds it who should not.
        """
        slot_by_key = dict(self.index.items())
        of_keys = set(slot_by_key.values())
        orphaned = [*self._orphaned_reads, *self._orphaned_writes, *self.held_back]
        if sorted([*self.free, *slot_by_key.values(), *orphaned]) != list(range(self._ready)):
            raise InternalError(f"free, resident and quarantined slots are not each slot once: {self!r}")
        if Counter(chain.from_iterable(held.slots for held in reads)) != self._readers.counts:
            raise InternalError(f"slots are read by others than the loads under way: {self!r}")
        if Counter(chain.from_iterable(held.slots for held in writes)) != Counter(
            [*self.writing, *self._orphaned_writes]
        ):
            raise InternalError(f"slots are written by others than the stores under way: {self!r}")
        pinned = self._readers.counts.keys() - self._orphaned_reads
        if not (self._orphaned_reads <= self._readers.counts.keys() and pinned <= of_keys and self.writing <= of_keys):
            raise InternalError(f"a held slot is neither a key's nor quarantined: {self!r}")
        now = self.statistics()
        if now.free + now.writing + now.pinned + now.evictable + now.quarantined != now.capacity:
            raise InternalError(f"slots do not add up: {now}")

    def __repr__(self) -> str:
        now = self.statistics()
        return (
            f"ChunkPool({now.capacity} slots: {now.free} free, {now.writing} writing, {now.pinned} pinned, "
            f"{now.evictable} evictable, {now.quarantined} quarantined)"
        )

    def _forget(self, keys: Sequence[OffloadKey], slots: Sequence[int]) -> None:
        self.removals += 1
        try:
            were_theirs = self.index.remove(keys) == slots
        except KeyError:
            were_theirs = False
        if not were_theirs:
            raise InternalError(f"a key is evicted or dropped that has another slot or none: {self!r}")

    def _allocate(self, count: int, freed: Sequence[int]) -> list[int]:
        left = self.free.count + len(freed) - count
        if left < 0:
            raise InternalError(f"{count} keys need {-left} slots more than are free: {self!r}")
        if left:
            self.free.give(freed)
            return sorted(self.free.take(count))
        # No run need be joined only to be cut again.
        return sorted([*freed, *self.free.take_all()])

    def _end_orphaned(self, slots: Iterable[int], count: int) -> None:
        orphaned = [slot for slot in slots if slot in self._orphaned_writes]
        if len(orphaned) < count:
            raise InternalError(f"a write ends of slots {list(slots)}, some of which nobody writes: {self!r}")
        self._orphaned_writes.difference_update(orphaned)
        self.free.give(orphaned)
