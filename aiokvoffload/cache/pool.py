"""Slots: which key has which, and who forbids that it goes. Knows no order among keys and no bytes.

A slot is in one of five states: *free*; *writing* (its key has a slot, but its bytes have not arrived); *resident
pinned* and *resident evictable* (readable, with or without somebody reading); *quarantined* (its key is gone, but a
copy may still touch it). `free + writing + pinned + evictable + quarantined = capacity`, always (I7).
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from aiokvoffload.base import OffloadKey
from aiokvoffload.cache.free_runs import FreeRuns
from aiokvoffload.errors import ArgumentError, InternalError

Held = dict[int, OffloadKey]
"""The slots that one transfer touches, each with the key it had when the transfer was prepared."""


@dataclass(frozen=True, slots=True)
class PoolStatistics:
    """How many slots are in which state; they add up to `capacity`."""

    capacity: int
    free: int
    writing: int
    pinned: int
    evictable: int
    quarantined: int


class ChunkPool:
    """The slots of one tier and chunk size.

    Every transfer *holds* the slots it touches, a write like a read; holds are counted. A held slot is never handed out
    again: if its key goes, it is quarantined until the last hold ends.

    Attributes:
        slots: the slot of every key that is readable or being written; not to be changed from outside.
        writing: those of them that are being written; not to be changed from outside.
        holds: number of transfers that touch a slot, by slot; not to be changed from outside.

    Raises:
        ArgumentError: `num_slots` is below 1.
    """

    __slots__ = ("_capacity", "_free", "_quarantined", "holds", "slots", "writing")

    def __init__(self, num_slots: int) -> None:
        if num_slots < 1:
            raise ArgumentError(f"num_slots must be at least 1, got {num_slots}")
        self._capacity = num_slots
        self._free = FreeRuns(num_slots)
        self._quarantined: set[int] = set()
        self.slots: dict[OffloadKey, int] = {}
        self.writing: set[OffloadKey] = set()
        self.holds: dict[int, int] = {}

    @property
    def free_count(self) -> int:
        """Slots that can be reserved without evicting anything."""
        return len(self._free)

    @property
    def evictable_count(self) -> int:
        """Slots whose keys are readable and held by nobody."""
        return len(self.slots) - len(self.holds) + len(self._quarantined)

    def reserve(self, keys: Sequence[OffloadKey], evicted: Iterable[OffloadKey] = ()) -> Held:
        """Give slots to absent, distinct `keys`, adjacent and increasing where it can, and hold them as being written.

        Args:
            keys: in chain order.
            evicted: evictable keys that give up their slots first.

        Raises:
            InternalError: a key to evict is absent or held, or there is no room; nothing has changed.
        """
        freed = self._evictable_slots(evicted)
        left = len(self._free) + len(freed) - len(keys)
        if left < 0:
            raise InternalError(f"{len(keys)} keys need {-left} slots more than are free: {self!r}")
        for key in evicted:
            del self.slots[key]
        if left:
            self._free.give(freed)
            slots = self._free.take(len(keys))
        else:  # A full cache turns over like this, and then no run need be joined only to be cut again.
            slots = sorted(self._free.take_all() + freed) if self._free else sorted(freed)
        self.slots.update(zip(keys, slots, strict=True))
        self.writing.update(keys)
        self.holds.update(dict.fromkeys(slots, 1))
        return dict(zip(slots, keys, strict=True))

    def publish(self, keys: Iterable[OffloadKey]) -> None:
        """Make written keys readable; their slots stay held until `release`."""
        self.writing.difference_update(keys)

    def pin(self, keys: Iterable[OffloadKey]) -> tuple[list[int], Held, Collection[OffloadKey]]:
        """Hold the slots of readable keys.

        Returns:
            The slots, one per key; what to give to `release`; and the keys that nobody held before.
        """
        slots = list(map(self.slots.__getitem__, keys))
        held = dict(zip(slots, keys, strict=True))
        if self.holds.keys().isdisjoint(held):
            self.holds.update(dict.fromkeys(held, 1))
            return slots, held, held.values()
        newly_held = [key for slot, key in held.items() if slot not in self.holds]
        for slot in held:
            self.holds[slot] = self.holds.get(slot, 0) + 1
        return slots, held, newly_held

    def release(self, held: Held) -> Collection[OffloadKey]:
        """End one hold of each slot; quarantined slots that nobody holds any more become free.

        Returns:
            The keys that are evictable again.

        Raises:
            InternalError: a slot is not held; nothing has changed.
        """
        counts = list(map(self.holds.get, held))
        if None in counts:
            raise InternalError(f"slot {list(held)[counts.index(None)]} is released but not held: {self!r}")
        if not self._quarantined and counts.count(1) == len(counts):
            for slot in held:
                del self.holds[slot]
            return held.values()
        return self._release_shared(held)

    def drop(self, keys: Iterable[OffloadKey]) -> None:
        """Take slots away from keys that are readable or being written; held slots are quarantined.

        Raises:
            InternalError: a key has no slot.
        """
        freed = []
        for key in keys:
            slot = self.slots.pop(key, None)
            if slot is None:
                raise InternalError(f"{key!r} is dropped but has no slot: {self!r}")
            self.writing.discard(key)
            if slot in self.holds:
                self._quarantined.add(slot)
            else:
                freed.append(slot)
        self._free.give(freed)

    def clear(self) -> dict[OffloadKey, int]:
        """Take the slots away from all keys, in time that does not depend on their number; quarantine held slots.

        Returns:
            The old `slots`, for the caller to let go of little by little.
        """
        old_slots, self.slots, self.writing = self.slots, {}, set()
        self._quarantined = set(self.holds)
        self._free = FreeRuns(self._capacity, self.holds)
        return old_slots

    def statistics(self) -> PoolStatistics:
        """Slots by state."""
        return PoolStatistics(
            capacity=self._capacity,
            free=len(self._free),
            writing=len(self.writing),
            pinned=len(self.holds) - len(self.writing) - len(self._quarantined),
            evictable=self.evictable_count,
            quarantined=len(self._quarantined),
        )

    def check_integrity(self) -> None:
        """Check conservation (I7), slot by slot.

        Raises:
            InternalError: a slot is in no state or in two, or a hold or a write belongs to nothing.
        """
        of_keys = set(self.slots.values())
        found = sorted([*self._free, *self.slots.values(), *self._quarantined])
        if found != list(range(self._capacity)):
            raise InternalError(f"free, resident and quarantined slots are not each slot once: {self!r}")
        if not self.holds.keys() <= of_keys | self._quarantined or min(self.holds.values(), default=1) < 1:
            raise InternalError(f"a free slot is held, or a hold counts nothing: {self!r}")
        if not self._quarantined <= self.holds.keys():
            raise InternalError(f"a slot is quarantined though nobody holds it: {self!r}")
        if any(self.holds.get(self.slots.get(key, -1)) != 1 for key in self.writing):
            raise InternalError(f"a key is being written without its one writer: {self!r}")
        counts = self.statistics()
        if counts.free + counts.writing + counts.pinned + counts.evictable + counts.quarantined != counts.capacity:
            raise InternalError(f"slots do not add up: {counts}")

    def __repr__(self) -> str:
        now = self.statistics()
        return (
            f"ChunkPool({now.capacity} slots: {now.free} free, {now.writing} writing, {now.pinned} pinned, "
            f"{now.evictable} evictable, {now.quarantined} quarantined)"
        )

    def _evictable_slots(self, keys: Iterable[OffloadKey]) -> list[int]:
        slots = [self.slots.get(key, -1) for key in keys]
        if -1 in slots or not self.holds.keys().isdisjoint(slots) or len(set(slots)) != len(slots):
            raise InternalError(f"a policy evicts a key that is absent, held or named twice: {self!r}")
        return slots

    def _release_shared(self, held: Held) -> list[OffloadKey]:
        evictable, freed = [], []
        for slot, key in held.items():
            if self.holds[slot] > 1:
                self.holds[slot] -= 1
                continue
            del self.holds[slot]
            if slot in self._quarantined:
                self._quarantined.remove(slot)
                freed.append(slot)
            else:
                evictable.append(key)
        self._free.give(freed)
        return evictable
