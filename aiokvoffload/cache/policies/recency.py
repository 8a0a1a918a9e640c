"""Chains by their last use, the building block of the recency policies. Knows neither rooms nor frequencies."""

from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Sequence, Set
from itertools import groupby, islice
from typing import Any

from aiokvoffload.base import OffloadKey

SEEDED = -1
"""The chain of keys taken over from another policy, which knows the order but no chains; callers count from 0."""

_Segment = dict[OffloadKey, None]
"""Keys of one chain, head first."""


class RecencyList:
    """Chains ordered by last use, and in each its keys, head first; the tail of the oldest chain leaves first.

    One order over all keys would let a chain that comes in several runs lose its head to others before its tail, since
    each run is more recent than those before it.

    Pinned and protected keys that are met at a tail are set aside until they may go again, so that passing over them
    costs once, not at every eviction. They keep their place, which is behind all that is left in their segment:
    whatever else changes a segment first puts back what was set aside.

    Args:
        pinned: keys that may not be evicted now; the owner's set, read here.
    """

    __slots__ = ("_asides", "_chain_of", "_pinned", "_segments", "_spared_for", "_sparing")

    def __init__(self, pinned: set[OffloadKey]) -> None:
        self._pinned = pinned
        # An ordered dictionary, since a plain one is slow at its front, where chains that moved leave holes. The keys
        # themselves come and go at the ends of plain ones, in half the time.
        self._segments: OrderedDict[int, _Segment] = OrderedDict()
        # A number rather than the segment, so that the collector has nothing to follow in a dictionary of all keys.
        self._chain_of: dict[OffloadKey, int] = {}
        self._asides: dict[int, _Segment] = {}  # tail first, in the order met
        # Who protects keys that are set aside though not pinned, and the chains in which they are.
        self._spared_for: Collection[OffloadKey] | None = None
        self._sparing: set[int] = set()

    def __len__(self) -> int:
        return len(self._chain_of)

    def __iter__(self) -> Iterator[OffloadKey]:
        for chain, segment in self._segments.items():
            yield from self._asides.get(chain, ())
            yield from reversed(segment)

    def __repr__(self) -> str:
        aside_count = sum(map(len, self._asides.values()))
        return f"RecencyList({len(self)} keys in {len(self._segments)} chains, {aside_count} set aside)"

    def add(self, keys: Sequence[OffloadKey], chain: int) -> None:
        """Add absent keys at the end of a chain, which becomes the most recent one."""
        if not keys:
            return
        segment = self._segments.get(chain)
        if segment is None:
            self._segments[chain] = dict.fromkeys(keys)
        else:
            self._put_back(chain)
            segment.update(dict.fromkeys(keys))
            self._segments.move_to_end(chain)
        chain_of = self._chain_of
        for key in keys:
            chain_of[key] = chain

    def touch(self, keys: Sequence[OffloadKey], chain: int) -> None:
        """Move those of the keys that are here to the end of a chain, which becomes the most recent one.

        It does too if none of them is here, as when a request goes on with what is new, but not if there are no keys.
        """
        if here := self._present(keys):
            self._take_out(here)
            self.add(here, chain)
        elif keys:
            self.renew(chain)

    def renew(self, chain: int) -> None:
        """Make a chain the most recent one, if anything of it is here."""
        if chain in self._segments:
            self._segments.move_to_end(chain)

    def remove(self, keys: Sequence[OffloadKey]) -> list[OffloadKey]:
        """Remove those of the keys that are here; returns them, in the order given."""
        if here := self._present(keys):
            self._take_out(here)
            for key in here:
                del self._chain_of[key]
        return here

    def evict(self, count: int, protected: Collection[OffloadKey], chain: int) -> list[OffloadKey]:
        """Remove `count` keys that are neither pinned nor protected, fewer if there are fewer; the first to go first.

        All keys of `chain` must be protected; they are not looked at. Where one set of protected keys is given again,
        it may have grown since, but not shrunk.
        """
        victims: list[OffloadKey] = []
        if count <= 0:
            return victims
        kept = self._kept(protected)
        emptied = []
        for number, segment in self._segments.items():
            if segment and number != chain:
                victims += self._take(number, segment, count - len(victims), kept)
                if not segment and number not in self._asides:
                    emptied.append(number)
                if len(victims) == count:
                    break
        for number in emptied:
            del self._segments[number]
        chain_of = self._chain_of
        for key in victims:
            del chain_of[key]
        return victims

    def count_victims(self, count: int, protected: Collection[OffloadKey], chain: int) -> int:
        """How many keys `evict` would remove."""
        found = 0
        kept = self._kept(protected)
        for number, segment in self._segments.items():
            if found >= count:
                break
            if segment and number != chain:
                self._clear_tail(number, kept)
                tail = list(islice(reversed(segment), count - found))
                if not self._are_free(tail, kept):
                    tail = list(islice((key for key in reversed(segment) if self._is_free(key, kept)), count - found))
                found += len(tail)
        return found

    def unpin(self, keys: Collection[OffloadKey]) -> None:
        """Let those of the keys that were set aside leave again."""
        if self._asides:
            for chain in self._asides.keys() & set(map(self._chain_of.get, keys)):
                if not self._asides[chain].keys().isdisjoint(keys):
                    self._put_back(chain)

    def clear(self) -> list[dict[Any, Any]]:
        """Forget all keys at once; returns the containers that held them."""
        containers: list[dict[Any, Any]] = [self._asides, self._segments, self._chain_of]
        self._chain_of, self._segments, self._asides = {}, OrderedDict(), {}
        self._spared_for = None
        self._sparing.clear()
        return containers

    def _present(self, keys: Sequence[OffloadKey]) -> list[OffloadKey]:
        chain_of = self._chain_of
        if chain_of.keys().isdisjoint(keys):
            return []  # as is usual for the new part of a chain
        return list(filter(chain_of.__contains__, keys))

    def _take_out(self, keys: Iterable[OffloadKey]) -> None:
        """Take keys that are here out of their segments."""
        for chain, run in groupby(keys, self._chain_of.__getitem__):
            self._put_back(chain)
            segment, leaving = self._segments[chain], list(run)
            if len(leaving) == len(segment):
                del self._segments[chain]
                continue
            for key in leaving:
                del segment[key]

    def _kept(self, protected: Collection[OffloadKey]) -> set[OffloadKey] | frozenset[OffloadKey]:
        """What must stay, as a set, which it is where it matters; what was spared for somebody else is put back."""
        if self._sparing and self._spared_for is not protected:
            for chain in list(self._sparing):
                self._put_back(chain)
        self._spared_for = protected
        return protected if isinstance(protected, (set, frozenset)) else frozenset(protected)

    def _take(self, chain: int, segment: _Segment, count: int, kept: Set[OffloadKey]) -> list[OffloadKey]:
        """Take up to `count` keys that may go from a segment's end, and set aside those between them that may not."""
        victims = _cut_tail(segment, count)
        if self._pinned.isdisjoint(victims) and kept.isdisjoint(victims):
            return victims
        tail, victims = victims, []
        while tail:
            free = [key for key in tail if self._is_free(key, kept)]
            self._set_aside(chain, [key for key in tail if not self._is_free(key, kept)])
            victims += free
            tail = _cut_tail(segment, count - len(victims))
        return victims

    def _clear_tail(self, chain: int, kept: Set[OffloadKey]) -> None:
        """Set aside what may not go, up to the first key that may."""
        segment = self._segments[chain]
        first_free = next(
            (index for index, key in enumerate(reversed(segment)) if self._is_free(key, kept)), len(segment)
        )
        self._set_aside(chain, _cut_tail(segment, first_free))

    def _set_aside(self, chain: int, keys: Sequence[OffloadKey]) -> None:
        if not keys:
            return
        self._asides.setdefault(chain, {}).update(dict.fromkeys(keys))
        if not self._pinned.issuperset(keys):
            self._sparing.add(chain)

    def _put_back(self, chain: int) -> None:
        if chain in self._asides:
            self._segments[chain].update(dict.fromkeys(reversed(self._asides.pop(chain))))
            self._sparing.discard(chain)

    def _are_free(self, keys: Collection[OffloadKey], kept: Set[OffloadKey]) -> bool:
        return self._pinned.isdisjoint(keys) and (not kept or kept.isdisjoint(keys))

    def _is_free(self, key: OffloadKey, kept: Set[OffloadKey]) -> bool:
        return key not in self._pinned and key not in kept


def _cut_tail(segment: _Segment, count: int) -> list[OffloadKey]:
    """Take up to `count` keys from a segment's end, the last one first."""
    if count >= len(segment):
        tail = list(reversed(segment))
        segment.clear()
        return tail
    tail = list(islice(reversed(segment), count))
    for key in tail:
        del segment[key]
    # Deletions leave holes, to be skipped at every look; `popitem` is what takes them away, but slow for every key.
    last, _ = segment.popitem()
    segment[last] = None
    return tail
