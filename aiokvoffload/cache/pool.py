"""Slots: which key has which, and who forbids that it goes. Knows no order among keys and no bytes.

A slot is in one of five states: *free*; *writing* (its key has a slot, but its bytes have not arrived); *resident
pinned* and *resident evictable* (readable, with or without somebody reading); *quarantined* (its key is gone, but a
copy may still touch it). `free + writing + pinned + evictable + quarantined = capacity`, always (I7).
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, takewhile

from aiokvoffload.base import OffloadKey
from aiokvoffload.cache.free_runs import FreeRuns
from aiokvoffload.errors import ArgumentError, InternalError

Held = dict[int, OffloadKey]
"""The slots that one transfer touches, each with the key it had when the transfer was prepared."""


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

    The one thing here that is not short with many slots (I10): Python rebuilds a dictionary in one go, while a cache
    fills up and about once in every turnover of a full one. Of all reservations of 128 keys, 0.15 ms in the middle, the
    longest took 4 ms with 32,768 slots, 9 ms with 65,536, 15 ms with 131,072 and 29 ms with 262,144. An index divided
    by a byte of the key would make all others slower instead; larger chunks mean fewer slots.

    Args:
        num_slots: how many there are, or will be.
        grows: whether there is none before `grow` says so.

    Attributes:
        free: slots that can be reserved without evicting anything; not to be changed from outside.
        slots: the slot of every key that is readable or being written; not to be changed from outside.
        writing: those of the slots that are being written; not to be changed from outside.

    Raises:
        ArgumentError: `num_slots` is below 1.
    """

    __slots__ = (
        "_capacity",
        "_growing",
        "_orphaned_reads",
        "_orphaned_writes",
        "_readers",
        "free",
        "slots",
        "writing",
    )

    def __init__(self, num_slots: int, *, grows: bool = False) -> None:
        if num_slots < 1:
            raise ArgumentError(f"num_slots must be at least 1, got {num_slots}")
        self._capacity = 0 if grows else num_slots
        self._growing = num_slots - self._capacity
        self.free = FreeRuns(self._capacity)
        self._readers: dict[int, int] = {}
        # Together these are the quarantined slots.
        self._orphaned_reads: set[int] = set()
        self._orphaned_writes: set[int] = set()
        self.slots: dict[OffloadKey, int] = {}
        self.writing: set[int] = set()

    @property
    def pinned_count(self) -> int:
        """Slots whose keys are readable and being read."""
        return len(self._readers) - len(self._orphaned_reads)

    @property
    def evictable_count(self) -> int:
        """Slots whose keys are readable and held by nobody."""
        return len(self.slots) - len(self.writing) - self.pinned_count

    def grow(self, capacity: int, *, ended: bool) -> None:
        """There are slots up to `capacity` from now on, if that is more than before; none will follow if it `ended`."""
        more = min(capacity - self._capacity, self._growing)
        if more > 0:
            self.free.extend(self._capacity, self._capacity + more)
            self._capacity += more
            self._growing -= more
        if ended:
            self._growing = 0

    def reserve(self, keys: Sequence[OffloadKey], evicted: Collection[OffloadKey] = ()) -> Held:
        """Give slots to absent, distinct `keys`, adjacent and increasing where it can, and hold them as being written.

        Args:
            keys: in chain order.
            evicted: evictable keys that give up their slots first.

        Returns:
            What to give to `end_write`, in the order of `keys`.

        Raises:
            InternalError: a key to evict is absent or held, or there is no room.
        """
        freed = self._take_from(evicted) if evicted else []
        turns_over = len(freed) == len(keys) and not self.free.count
        slots = sorted(freed) if turns_over else self._allocate(len(keys), freed)
        self.slots.update(zip(keys, slots, strict=True))
        self.writing.update(slots)
        return dict(zip(slots, keys, strict=False))  # as many, as was seen just now

    def end_write(self, held: Held) -> None:
        """End a write: its keys become readable; slots whose keys were dropped meanwhile become free.

        Raises:
            InternalError: a slot is not being written; nothing has changed.
        """
        if self.writing.issuperset(held):
            self.writing.difference_update(held)
            return
        orphaned = [slot for slot in held if slot not in self.writing]
        if not self._orphaned_writes.issuperset(orphaned):
            raise InternalError(f"a write ends of slots {orphaned}, which nobody writes: {self!r}")
        self.writing.difference_update(held)
        self._orphaned_writes.difference_update(orphaned)
        self.free.give(orphaned)

    def pin_leading(self, keys: Iterable[OffloadKey]) -> tuple[list[int], Held, Collection[OffloadKey]]:
        """Hold the slots of the leading keys that are readable.

        Returns:
            Their slots, one per key; what to give to `unpin`; and the keys that nobody held before.
        """
        slots = list(map(self.slots.__getitem__, takewhile(self.slots.__contains__, keys)))
        if self.writing and not self.writing.isdisjoint(slots):
            slots = list(takewhile(lambda slot: slot not in self.writing, slots))
        held = dict(zip(slots, keys, strict=False))
        if not self._readers or self._readers.keys().isdisjoint(slots):
            self._readers.update(dict.fromkeys(held, 1))
            return slots, held, held.values()
        newly_held = [key for slot, key in held.items() if slot not in self._readers]
        for slot in held:
            self._readers[slot] = self._readers.get(slot, 0) + 1
        return slots, held, newly_held

    def unpin(self, held: Held) -> Collection[OffloadKey]:
        """End one read of each slot; those whose keys were dropped become free with their last reader.

        Returns:
            The keys that are evictable again.

        Raises:
            InternalError: a slot is not being read; nothing has changed.
        """
        readers = self._readers
        counts = [readers.get(slot) for slot in held]
        if None in counts:
            raise InternalError(f"slot {list(held)[counts.index(None)]} is unpinned but not pinned: {self!r}")
        if self._orphaned_reads or counts.count(1) < len(counts):
            return self._unpin_shared(held)
        for slot in held:
            del readers[slot]
        return held.values()

    def drop(self, keys: Iterable[OffloadKey]) -> None:
        """Take slots away from keys that are readable or being written; held slots are quarantined.

        Raises:
            InternalError: a key has no slot.
        """
        for key in keys:
            slot = self.slots.pop(key, None)
            if slot is None:
                raise InternalError(f"{key!r} is dropped but has no slot: {self!r}")
            if slot in self.writing:
                self.writing.remove(slot)
                self._orphaned_writes.add(slot)
            elif slot in self._readers:
                self._orphaned_reads.add(slot)
            else:
                self.free.give((slot,))

    def clear(self) -> dict[OffloadKey, int]:
        """Take the slots away from all keys, in time that does not depend on their number; quarantine held slots.

        Returns:
            The old `slots`, for the caller to let go of little by little.
        """
        self._orphaned_reads = set(self._readers)
        self._orphaned_writes |= self.writing
        self.free = FreeRuns(self._capacity, self._orphaned_reads | self._orphaned_writes)
        old_slots, self.slots, self.writing = self.slots, {}, set()
        return old_slots

    def statistics(self) -> PoolStatistics:
        """Slots by state."""
        return PoolStatistics(
            capacity=self._capacity,
            free=self.free.count,
            writing=len(self.writing),
            pinned=self.pinned_count,
            evictable=self.evictable_count,
            quarantined=len(self._orphaned_reads) + len(self._orphaned_writes),
            growing=self._growing,
        )

    def check_integrity(self, reads: Iterable[Held], writes: Iterable[Held]) -> None:
        """Check conservation (I7) slot by slot, and that slots are held by exactly these transfers.

        Raises:
            InternalError: a slot is in no state or in two, or somebody holds it who should not.
        """
        of_keys = set(self.slots.values())
        orphaned = [*self._orphaned_reads, *self._orphaned_writes]
        if sorted([*self.free, *self.slots.values(), *orphaned]) != list(range(self._capacity)):
            raise InternalError(f"free, resident and quarantined slots are not each slot once: {self!r}")
        if Counter(chain.from_iterable(reads)) != Counter(self._readers):
            raise InternalError(f"slots are read by others than the loads under way: {self!r}")
        if Counter(chain.from_iterable(writes)) != Counter([*self.writing, *self._orphaned_writes]):
            raise InternalError(f"slots are written by others than the stores under way: {self!r}")
        pinned = self._readers.keys() - self._orphaned_reads
        if not (self._orphaned_reads <= self._readers.keys() and pinned <= of_keys and self.writing <= of_keys):
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

    def _take_from(self, evicted: Iterable[OffloadKey]) -> list[int]:
        try:
            slots = list(map(self.slots.pop, evicted))
        except KeyError as error:
            raise InternalError(f"a key is evicted that is absent, or twice: {self!r}") from error
        if (self._readers and not self._readers.keys().isdisjoint(slots)) or not self.writing.isdisjoint(slots):
            raise InternalError(f"a key is evicted while a transfer holds its slot: {self!r}")
        return slots

    def _allocate(self, count: int, freed: list[int]) -> list[int]:
        left = self.free.count + len(freed) - count
        if left < 0:
            raise InternalError(f"{count} keys need {-left} slots more than are free: {self!r}")
        if left:
            self.free.give(freed)
            return self.free.take(count)
        # No run need be joined only to be cut again.
        return sorted(freed + self.free.take_all())

    def _unpin_shared(self, held: Held) -> list[OffloadKey]:
        evictable, freed = [], []
        for slot, key in held.items():
            if self._readers[slot] > 1:
                self._readers[slot] -= 1
                continue
            del self._readers[slot]
            if slot in self._orphaned_reads:
                self._orphaned_reads.remove(slot)
                freed.append(slot)
            else:
                evictable.append(key)
        self.free.give(freed)
        return evictable
