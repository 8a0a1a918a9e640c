"""Chains by their last use, the building block of the recency policies. Knows neither rooms nor frequencies."""

from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence, Set
from itertools import groupby, islice
from typing import Any

from aiokvoffload.base import OffloadKey, Residents

SEEDED = -1
"""The chain of slots taken over from another policy, which knows the order but no chains; callers count from 0."""
_NOBODY = -2

_Segment = dict[int, OffloadKey]
"""Slots of one chain with their keys, head first."""

Victims = tuple[list[OffloadKey], list[int]]
"""Keys that leave, the first to go first, and the slot of each."""


def no_chains(capacity: int) -> list[int]:
    """By slot: in no chain."""
    return [_NOBODY] * capacity


class RecencyList:
    """Chains ordered by last use, and in each its slots, head first; the tail of the oldest chain leaves first.

    One order over all slots would let a chain that comes in several runs lose its head to others before its tail, since
    each run is more recent than those before it.

    Held and protected slots that are met at a tail are set aside until they may go again, so that passing over them
    costs once, not at every eviction. They keep their place, which is behind all that is left in their segment:
    whatever else changes a segment first puts back what was set aside.

    Args:
        residents: says which slots may leave.
        chain_of: the chain of each slot, by slot, from `no_chains`; lists that share no slot may share it.
    """

    __slots__ = ("_are_free", "_asides", "_chain_of", "_count", "_segments", "_spared_for", "_sparing")

    def __init__(self, residents: Residents, chain_of: list[int] | None = None) -> None:
        self._are_free = residents.are_free
        # An ordered dictionary, since a plain one is slow at its front, where chains that moved leave holes. The slots
        # themselves come and go at the ends of plain ones, in half the time.
        self._segments: OrderedDict[int, _Segment] = OrderedDict()
        # What it says of slots that are not here means nothing.
        self._chain_of = no_chains(residents.capacity) if chain_of is None else chain_of
        self._count = 0
        self._asides: dict[int, _Segment] = {}  # tail first, in the order met
        # Whose protected slots are set aside though not held, and the chains in which they are.
        self._spared_for = _NOBODY
        self._sparing: set[int] = set()

    def __len__(self) -> int:
        return self._count

    def residents(self) -> _Segment:
        """All slots with their keys, the first to leave in front."""
        return dict(self._in_order())

    def oldest(self, count: int) -> list[tuple[int, OffloadKey]]:
        """The first `count` of `residents`, in time that depends on `count` only."""
        return list(islice(self._in_order(), count))

    def _in_order(self) -> Iterator[tuple[int, OffloadKey]]:
        for chain, segment in self._segments.items():
            yield from self._asides.get(chain, {}).items()
            yield from reversed(segment.items())

    def __repr__(self) -> str:
        aside_count = sum(map(len, self._asides.values()))
        return f"RecencyList({len(self)} slots in {len(self._segments)} chains, {aside_count} set aside)"

    def add(self, keys: Sequence[OffloadKey], slots: Sequence[int], chain: int) -> None:
        """Add absent slots at the end of a chain, which becomes the most recent one."""
        if not slots:
            return
        added = dict(zip(slots, keys, strict=True))
        segment = self._segments.get(chain)
        if segment is None:
            self._segments[chain] = added
        else:
            self._put_back(chain)
            segment.update(added)
            self._segments.move_to_end(chain)
        chain_of = self._chain_of
        for slot in slots:
            chain_of[slot] = chain
        self._count += len(slots)

    def touch(self, keys: Sequence[OffloadKey], slots: Sequence[int], chain: int) -> None:
        """Move slots that are here to the end of a chain, which becomes the most recent one, even for no slots."""
        if slots:
            self.remove(slots)
            self.add(keys, slots, chain)
        elif chain in self._segments:
            self._segments.move_to_end(chain)

    def remove(self, slots: Sequence[int]) -> None:
        """Remove slots that are here."""
        for chain, run in groupby(slots, self._chain_of.__getitem__):
            self._put_back(chain)
            segment, leaving = self._segments[chain], list(run)
            if len(leaving) == len(segment):
                del self._segments[chain]
                continue
            for slot in leaving:
                del segment[slot]
        self._count -= len(slots)

    def evict(self, count: int, protected: Set[OffloadKey], chain: int) -> Victims:
        """Remove `count` slots that are neither held nor protected, fewer if there are fewer; the first to go first.

        All slots of `chain` must be protected; they are not looked at. What is protected for one chain may grow from
        call to call, but not shrink.
        """
        keys: list[OffloadKey] = []
        slots: list[int] = []
        if count <= 0:
            return keys, slots
        self._spare_for(chain)
        emptied = []
        for number, segment in self._segments.items():
            if segment and number != chain:
                left_keys, left_slots = self._take(number, segment, count - len(slots), protected)
                keys += left_keys
                slots += left_slots
                if not segment and number not in self._asides:
                    emptied.append(number)
                if len(slots) == count:
                    break
        for number in emptied:
            del self._segments[number]
        self._count -= len(slots)
        return keys, slots

    def has_chain(self, chain: int) -> bool:
        """Whether some of a chain is here."""
        return chain in self._segments

    def first_to_leave(self, chain: int) -> int | None:
        """The slot that is first to leave, but for those of `chain` and what is set aside for it; it may be held."""
        self._spare_for(chain)
        for number, segment in self._segments.items():
            if segment and number != chain:
                return next(reversed(segment))
        return None

    def evict_oldest(self, count: int, protected: Set[OffloadKey], chain: int) -> Victims:
        """The same as `evict`, from the chain of `first_to_leave` only; of that there may be nothing that may leave."""
        self._spare_for(chain)
        for number, segment in self._segments.items():
            if segment and number != chain:
                victims = self._take(number, segment, count, protected)
                if not segment and number not in self._asides:
                    del self._segments[number]
                self._count -= len(victims[1])
                return victims
        return [], []

    def count_victims(self, count: int, protected: Set[OffloadKey], chain: int) -> int:
        """How many slots `evict` would remove."""
        found = 0
        self._spare_for(chain)
        for number, segment in self._segments.items():
            if found >= count:
                break
            if segment and number != chain:
                self._clear_tail(number, segment, protected)
                free = (slot for slot, key in reversed(segment.items()) if self._may_leave(slot, key, protected))
                found += sum(1 for _ in islice(free, count - found))
        return found

    def release(self, slots: Collection[int]) -> None:
        """Let those of the slots that were set aside leave again, if nobody else holds them."""
        if self._asides:
            for chain in self._asides.keys() & set(map(self._chain_of.__getitem__, slots)):
                if not self._asides[chain].keys().isdisjoint(slots):
                    self._put_back(chain)

    def clear(self) -> list[dict[Any, Any]]:
        """Forget all slots at once; returns the containers that held them."""
        containers: list[dict[Any, Any]] = [self._asides, self._segments]
        self._segments, self._asides = OrderedDict(), {}
        self._count = 0
        self._sparing.clear()
        return containers

    def _spare_for(self, chain: int) -> None:
        """What was set aside because it was protected for another chain is put back."""
        if chain != self._spared_for:
            for sparing in list(self._sparing):
                self._put_back(sparing)
            self._spared_for = chain

    def _take(self, chain: int, segment: _Segment, count: int, protected: Set[OffloadKey]) -> Victims:
        """Take up to `count` slots that may go from a segment's end, and set aside those between them that may not."""
        keys, slots = _cut_tail(segment, count)
        if self._are_free(slots) and protected.isdisjoint(keys):
            return keys, slots
        tail, victims = dict(zip(slots, keys, strict=True)), _Segment()
        while tail:
            free = {slot: key for slot, key in tail.items() if self._may_leave(slot, key, protected)}
            self._set_aside(chain, {slot: key for slot, key in tail.items() if slot not in free})
            victims |= free
            keys, slots = _cut_tail(segment, count - len(victims))
            tail = dict(zip(slots, keys, strict=True))
        return list(victims.values()), list(victims)

    def _clear_tail(self, chain: int, segment: _Segment, protected: Set[OffloadKey]) -> None:
        """Set aside what may not go, up to the first slot that may."""
        may_leave = (self._may_leave(slot, key, protected) for slot, key in reversed(segment.items()))
        first_free = next((index for index, may in enumerate(may_leave) if may), len(segment))
        keys, slots = _cut_tail(segment, first_free)
        self._set_aside(chain, dict(zip(slots, keys, strict=True)))

    def _may_leave(self, slot: int, key: OffloadKey, protected: Set[OffloadKey]) -> bool:
        return key not in protected and self._are_free((slot,))

    def _set_aside(self, chain: int, tail: _Segment) -> None:
        if not tail:
            return
        self._asides.setdefault(chain, {}).update(tail)
        if any(self._are_free((slot,)) for slot in tail):
            self._sparing.add(chain)

    def _put_back(self, chain: int) -> None:
        if self._asides and chain in self._asides:
            self._segments[chain].update(reversed(self._asides.pop(chain).items()))
            self._sparing.discard(chain)


def _cut_tail(segment: _Segment, count: int) -> Victims:
    """Take up to `count` slots from a segment's end, the last one first."""
    if count >= len(segment):
        slots, keys = list(reversed(segment)), list(reversed(segment.values()))
        segment.clear()
        return keys, slots
    slots = list(islice(reversed(segment), count))
    keys = list(map(segment.pop, slots))
    if slots:
        # Taking out leaves holes, to be skipped at every look; `popitem` closes them, but is slow for every slot.
        last, key = segment.popitem()
        segment[last] = key
    return keys, slots
