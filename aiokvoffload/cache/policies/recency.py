"""Chains by their last use, the building block of the recency policies. Knows neither rooms nor frequencies."""

from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence, Set
from itertools import groupby, islice
from typing import Any

from aiokvoffload.base import OffloadKey, Residents
from aiokvoffload.cache.policies.runs import (
    Chain,
    Victims,
    cut_tail,
    extended,
    find,
    from_tail,
    part,
    run_of,
    without,
    without_tail,
)

SEEDED = -1
"""The chain of slots taken over from another policy, which knows the order but no chains; callers count from 0."""
_NOBODY = -2

LAYER_BITS = 8
LAYER_MASK = (1 << LAYER_BITS) - 1

_Aside = dict[int, tuple[OffloadKey, int]]
"""Slots with their keys and stamps, tail first."""


def no_chains(capacity: int) -> list[int]:
    """By slot: in no chain. Else there is the number of the chain, and in its last `LAYER_BITS` that of the list."""
    return [_NOBODY] * capacity


class RecencyList:
    """Chains ordered by last use, and in each its slots, head first; the tail of the oldest chain leaves first.

    One order over all slots would let a chain that comes in several runs lose its head to others before its tail, since
    each run is more recent than those before it.

    Held and protected slots that are met at a tail are set aside until they may go again, so that passing over them
    costs once, not at every eviction. They keep their place, which is behind all that is left of their chain: whatever
    else changes a chain first puts back what was set aside.

    Args:
        residents: says which slots may leave.
        chain_of: the chain of each slot, by slot, from `no_chains`; lists that share no slot may share it.
        layer: number of this list among those.

    Attributes:
        asides: what was set aside, by chain; not to be changed from outside.
        chains: chains by number, the oldest in front; not to be changed from outside.
    """

    __slots__ = ("_are_free", "_chain_of", "_count", "_layer", "_spared_for", "_sparing", "asides", "chains")

    def __init__(self, residents: Residents, chain_of: list[int] | None = None, *, layer: int = 0) -> None:
        self._layer = layer
        self._are_free = residents.are_free
        # An ordered dictionary, since a plain one is slow at its front, where chains that moved leave holes.
        self.chains: OrderedDict[int, Chain] = OrderedDict()
        # What it says of slots that are not here means nothing.
        self._chain_of = no_chains(residents.capacity) if chain_of is None else chain_of
        self._count = 0
        self.asides: dict[int, _Aside] = {}
        # Whose protected slots are set aside though not held, and the chains in which they are.
        self._spared_for = _NOBODY
        self._sparing: set[int] = set()

    def __len__(self) -> int:
        return self._count

    def residents(self) -> dict[int, OffloadKey]:
        """All slots with their keys, the first to leave in front."""
        return dict(self._in_order())

    def oldest(self, count: int) -> list[tuple[int, OffloadKey]]:
        """The first `count` of `residents`, in time that depends on `count` only."""
        return list(islice(self._in_order(), count))

    def _in_order(self) -> Iterator[tuple[int, OffloadKey]]:
        for number, chain in self.chains.items():
            for slot, (key, _) in self.asides.get(number, {}).items():
                yield slot, key
            for slot, key, _ in from_tail(chain):
                yield slot, key

    def __repr__(self) -> str:
        aside_count = sum(map(len, self.asides.values()))
        return f"RecencyList({len(self)} slots in {len(self.chains)} chains, {aside_count} set aside)"

    def add(self, keys: Sequence[OffloadKey], slots: Sequence[int], chain: int, *, stamp: int = 0) -> None:
        """Add absent slots at the end of a chain, which becomes the most recent one; `stamp` is the caller's."""
        if not slots:
            return
        if self.asides:
            self._put_back(chain)
        before = self.chains.get(chain)
        if before is None:
            self.chains[chain] = (run_of(slots, keys, stamp),)
        else:
            self.chains[chain] = extended(before, slots, keys, stamp)
            self.chains.move_to_end(chain)
        chain_of, place = self._chain_of, chain << LAYER_BITS | self._layer
        for slot in slots:
            chain_of[slot] = place
        self._count += len(slots)

    def renew(self, chain: int) -> None:
        """Make a chain the most recent one, if some of it is here."""
        if chain in self.chains:
            self.chains.move_to_end(chain)

    def remove(self, slots: Sequence[int]) -> None:
        """Remove slots that are here."""
        slots, done = tuple(slots), 0
        while done < len(slots):
            number = self._chain_of[slots[done]] >> LAYER_BITS
            if self.asides:
                self._put_back(number)
            chain, done = without(self.chains[number], slots, done)
            if chain:
                self.chains[number] = chain
            else:
                del self.chains[number]
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
        if self._sparing:  # seldom
            self._spare_for(chain)
        left: dict[int, Chain] = {}
        for number, found in self.chains.items():
            if found and number != chain:
                left[number] = cut_tail(found, count - len(slots), keys, slots)
                if len(slots) == count:
                    break
        if self._are_free(slots) and protected.isdisjoint(keys):  # as most often, so that it is asked once for all
            for number, rest in left.items():
                if rest or number in self.asides:
                    self.chains[number] = rest
                else:
                    del self.chains[number]
        else:
            keys, slots = self._evict_each(count, protected, chain)
        self._count -= len(slots)
        return keys, slots

    def rest_of_run(self, slot: int) -> tuple[Sequence[OffloadKey], Sequence[int]]:
        """Keys and slots behind a slot in its run; none if the slot is set aside."""
        chain = self.chains.get(self._chain_of[slot] >> LAYER_BITS, ())
        for slots, keys, begin, end, _ in chain:
            if slots[begin] == slot:  # as most often: whoever asks has just passed the run before
                return part(keys, begin + 1, end), part(slots, begin + 1, end)
        for run in chain:
            if (at := find(run, slot)) < run[3]:
                return part(run[1], at + 1, run[3]), part(run[0], at + 1, run[3])
        return (), ()

    def oldest_stamp(self, chain: int) -> int | None:
        """The stamp of the slot that is first to leave, but for those of `chain` and what is set aside for it.

        It may be held.
        """
        if self._sparing and chain != self._spared_for:
            self._spare_for(chain)
        for number, found in self.chains.items():
            if found and number != chain:
                return found[-1][-1]
        return None

    def evict_oldest(self, count: int, protected: Set[OffloadKey], chain: int) -> Victims:
        """The same as `evict`, from the chain of `oldest_stamp` only; of that there may be nothing that may leave."""
        self._spare_for(chain)
        for number, found in self.chains.items():
            if found and number != chain:
                victims = self._take(number, found, count, protected)
                if not self.chains[number] and number not in self.asides:
                    del self.chains[number]
                self._count -= len(victims[1])
                return victims
        return [], []

    def count_victims(self, count: int, protected: Set[OffloadKey], chain: int) -> int:
        """How many slots `evict` would remove."""
        found_count = 0
        self._spare_for(chain)
        for number, found in self.chains.items():
            if found_count >= count:
                break
            if found and number != chain:
                left = self._clear_tail(number, found, protected)
                free = (slot for slot, key, _ in from_tail(left) if self._may_leave(slot, key, protected))
                found_count += sum(1 for _ in islice(free, count - found_count))
        return found_count

    def release(self, slots: Collection[int]) -> None:
        """Let those of the slots that were set aside leave again, if nobody else holds them."""
        if self.asides:
            for chain in self.asides.keys() & {self._chain_of[slot] >> LAYER_BITS for slot in slots}:
                if not self.asides[chain].keys().isdisjoint(slots):
                    self._put_back(chain)

    def clear(self) -> list[dict[Any, Any]]:
        """Forget all slots at once; returns the containers that held them."""
        containers: list[dict[Any, Any]] = [self.asides, self.chains]
        self.chains, self.asides = OrderedDict(), {}
        self._count = 0
        self._sparing.clear()
        return containers

    def _spare_for(self, chain: int) -> None:
        """What was set aside because it was protected for another chain is put back."""
        if chain != self._spared_for:
            for sparing in list(self._sparing):
                self._put_back(sparing)
            self._spared_for = chain

    def _evict_each(self, count: int, protected: Set[OffloadKey], spared: int) -> Victims:
        """Take up to `count` slots that may go, chain by chain."""
        self._spare_for(spared)
        keys: list[OffloadKey] = []
        slots: list[int] = []
        emptied = []
        for number, found in self.chains.items():
            if found and number != spared:
                left_keys, left_slots = self._take(number, found, count - len(slots), protected)
                keys += left_keys
                slots += left_slots
                if not self.chains[number] and number not in self.asides:
                    emptied.append(number)
                if len(slots) == count:
                    break
        for number in emptied:
            del self.chains[number]
        return keys, slots

    def _take(self, number: int, chain: Chain, count: int, protected: Set[OffloadKey]) -> Victims:
        """Take up to `count` slots that may go from a chain's end, and set aside those between them that may not."""
        left, keys, slots = without_tail(chain, count)
        if self._are_free(slots) and protected.isdisjoint(keys):
            self.chains[number] = left
            return keys, slots
        victims, aside = dict[int, OffloadKey](), _Aside()
        for slot, key, stamp in from_tail(chain):
            if len(victims) == count:
                break
            if self._may_leave(slot, key, protected):
                victims[slot] = key
            else:
                aside[slot] = key, stamp
        self.chains[number] = without_tail(chain, len(victims) + len(aside))[0]
        self._set_aside(number, aside)
        return list(victims.values()), list(victims)

    def _clear_tail(self, number: int, chain: Chain, protected: Set[OffloadKey]) -> Chain:
        """Set aside what may not go, up to the first slot that may."""
        aside = _Aside()
        for slot, key, stamp in from_tail(chain):
            if self._may_leave(slot, key, protected):
                break
            aside[slot] = key, stamp
        left = self.chains[number] = without_tail(chain, len(aside))[0]
        self._set_aside(number, aside)
        return left

    def _may_leave(self, slot: int, key: OffloadKey, protected: Set[OffloadKey]) -> bool:
        return key not in protected and self._are_free((slot,))

    def _set_aside(self, number: int, tail: _Aside) -> None:
        if not tail:
            return
        self.asides.setdefault(number, {}).update(tail)
        if any(self._are_free((slot,)) for slot in tail):
            self._sparing.add(number)

    def _put_back(self, number: int) -> None:
        if number in self.asides:
            tail = reversed(self.asides.pop(number).items())
            for stamp, items in groupby(tail, key=lambda item: item[1][1]):
                keys_by_slot = {slot: key for slot, (key, _) in items}
                chain = self.chains[number]
                self.chains[number] = extended(chain, tuple(keys_by_slot), tuple(keys_by_slot.values()), stamp)
            self._sparing.discard(number)
