"""The caches of a tier with several groups, one per chunk size, addressed by keys of any group."""

from collections.abc import Collection, Iterator, Sequence, Set
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from aiokvoffload.base import LookupResult, OffloadKey
from aiokvoffload.cache.chains import GROUP_SUFFIX, group_suffix, in_chain_order
from aiokvoffload.cache.chunk_cache import ChunkCache
from aiokvoffload.cache.discard import DiscardPile
from aiokvoffload.cache.key_check import KeyCheck, as_sequence
from aiokvoffload.cache.pool import Held, PoolStatistics
from aiokvoffload.cache.prefix import longest_common_position
from aiokvoffload.cache.tier_cache import TierCache, require_one_each
from aiokvoffload.cache.uses import RequestUses
from aiokvoffload.config import GroupConfig
from aiokvoffload.errors import ArgumentError

_Part = tuple[ChunkCache, Held]
"""The slots that one transfer holds in one cache."""


class HeldInParts(NamedTuple):
    """What one transfer touches: all its slots and keys, and what each cache holds of them."""

    slots: Sequence[int]
    keys: Sequence[OffloadKey]
    parts: Sequence[_Part]


class CacheSet(TierCache[HeldInParts]):
    """One cache per pool, and who uses which.

    What a store of several groups gets, it gets by position: the leading positions for which every pool has room. A
    position is of use only with all of its groups, so where one pool has room for nothing, the store is refused, and no
    pool has evicted anything (I6). Only a policy that declines keys in spite of room is treated pool by pool: what
    the other pools took stands.

    Args:
        caches: the caches.
        groups: for each KV-cache group what its chunks are.
        cache_by_group: for each group its cache.
    """

    __slots__ = ("_cache_by_suffix", "_caches", "_check", "_groups", "_span_by_suffix")

    def __init__(
        self, caches: Sequence[ChunkCache], *, groups: Sequence[GroupConfig], cache_by_group: Sequence[ChunkCache]
    ) -> None:
        self._caches = tuple(caches)
        self._groups = tuple(groups)
        self._cache_by_suffix = {group_suffix(index): cache for index, cache in enumerate(cache_by_group)}
        self._span_by_suffix = {group_suffix(index): group.span for index, group in enumerate(groups)}
        self._check = KeyCheck(len(groups))

    def lookup(self, key: OffloadKey) -> LookupResult:
        """Say what `key` is now."""
        self._check.require_key(key)
        return self._cache_by_suffix[key[GROUP_SUFFIX]].lookup(key)

    def count_leading(self, keys: Sequence[OffloadKey], uses: RequestUses | None) -> int:
        """Number of the leading keys that are readable or being written; nothing of them is remembered."""
        return sum(len(slots) for _, _, slots in self._find_leading(keys))

    def _find_leading(
        self, keys: Sequence[OffloadKey]
    ) -> Sequence[tuple[ChunkCache, Sequence[OffloadKey], Sequence[int]]]:
        """The leading runs with the slots of their leading keys; in all but the last that is all of them."""
        found, count = [], 0
        for cache, run in self._runs(keys):
            try:
                slots = cache.leading_slots(run)
            except (IndexError, TypeError):
                self._check.refuse(run)
                raise
            found.append((cache, run, slots))
            count += len(slots)
            if len(slots) < len(run):
                self._check.require_key(keys[count], f"keys[{count}]")
                break
        return found

    def longest_common_position(self, keys_by_group: Sequence[Sequence[OffloadKey]]) -> int:
        """As in `cache.prefix`, over keys that are readable or being written."""
        keys_by_group = as_sequence(keys_by_group, "keys_by_group")
        if len(keys_by_group) != len(self._groups):
            raise ArgumentError(
                f"keys_by_group must have one entry for each of {len(self._groups)} groups, got {len(keys_by_group)}"
            )
        present = [cache.pool.index for cache in self._cache_by_suffix.values()]
        try:
            return longest_common_position(keys_by_group, self._groups, present)
        except (IndexError, TypeError):
            for keys in keys_by_group:
                self._check.refuse(keys)
            raise

    def _in_chain_order(self, keys: Sequence[OffloadKey]) -> Sequence[OffloadKey]:
        """The keys of one call, group after group, as one chain over all groups, head first."""
        try:
            return in_chain_order(keys, self._span_by_suffix)
        except (KeyError, TypeError):
            self._check.require_keys(keys)
            raise

    def absent(self, keys: Sequence[OffloadKey]) -> Sequence[OffloadKey]:
        """The keys that have no slot, in the order given."""
        try:
            absent = [key for cache, run in self._runs(keys) for key in cache.absent(run)]
        except (IndexError, TypeError):
            self._check.refuse(keys)
            raise
        self._check.require_keys(absent)
        self._check.require_distinct(absent)
        return absent if len(absent) < len(keys) else keys

    def use(self, keys: Sequence[OffloadKey], uses: RequestUses) -> None:
        """Count a use of each key that a request has not used before."""
        for cache, part in self._by_cache(uses.count_use(self._in_chain_order(keys))):
            cache.access(part, uses.chain_number)

    def use_sifting(self, keys: Sequence[OffloadKey], uses: RequestUses) -> Sequence[OffloadKey]:
        """The same; returns the keys that have no slot, as one chain."""
        chain = self._in_chain_order(keys)
        absent = self.absent(chain)
        for cache, part in self._by_cache(uses.count_use(chain)):
            if absent is chain:
                cache.access_absent(part, uses.chain_number)
            else:
                cache.access(part, uses.chain_number)
        return absent

    def pin_leading(self, keys: Sequence[OffloadKey]) -> HeldInParts:
        """Hold the leading keys that can be read now, for reading."""
        pinned: list[int] = []
        parts = []
        for cache, run, found in self._find_leading(keys):
            held = cache.pool.pin_found(run, found)
            pinned += held.slots
            parts.append((cache, held))
            if len(held.slots) < len(run):
                break
        return HeldInParts(pinned, keys[: len(pinned)], parts)

    def use_pinning(self, keys: Sequence[OffloadKey], uses: RequestUses) -> HeldInParts:
        """The same, and count a use of those keys."""
        held = self.pin_leading(keys)
        self.use(held.keys, uses)
        return held

    def reserve(
        self,
        chain: Sequence[OffloadKey],
        offered: Sequence[OffloadKey],
        protected: Set[OffloadKey],
        chain_number: int,
        *,
        may_decline: bool = True,
    ) -> tuple[HeldInParts, Sequence[OffloadKey]] | None:
        """Reserve slots for the leading part of `chain` for which every pool has room."""
        # A single pool's policy cuts by itself.
        part = chain if len(self._caches) == 1 else self._cut_to_room(chain, protected, chain_number)
        parts: list[_Part] = []
        evicted: list[OffloadKey] = []
        for cache, own in self._by_cache(part):
            layout = _laid_out(own, offered)
            reserved = cache.reserve_chain(own, layout, protected, chain_number, may_decline=may_decline)
            if reserved is not None:
                held, gone = reserved
                parts.append((cache, held))
                evicted += gone
        if not parts:
            return None
        slot_by_key = {key: slot for _, held in parts for slot, key in zip(held.slots, held.keys, strict=True)}
        keys = [key for key in offered if key in slot_by_key]
        return HeldInParts([slot_by_key[key] for key in keys], keys, parts), evicted

    def complete_read(self, record: HeldInParts, failed_keys: Collection[OffloadKey] = ()) -> Collection[OffloadKey]:
        """End a read; returns the keys that were dropped because they could not be read."""
        return [key for cache, held in record.parts for key in cache.complete_read(held, failed_keys)]

    def complete_write(self, record: HeldInParts, failed_keys: Collection[OffloadKey] = ()) -> Sequence[OffloadKey]:
        """End a write; returns the keys that became readable."""
        return [key for cache, held in record.parts for key in cache.complete_write(held, failed_keys)]

    def quarantine_write(self, record: HeldInParts) -> None:
        """Drop the keys of a write that goes on; its slots are quarantined until `abandon_write`."""
        for cache, held in record.parts:
            cache.quarantine_write(held)

    def abandon_read(self, record: HeldInParts) -> None:
        """End a read of an epoch that is over."""
        for cache, held in record.parts:
            cache.abandon_read(held)

    def abandon_write(self, record: HeldInParts) -> None:
        """End a write of an epoch that is over."""
        for cache, held in record.parts:
            cache.abandon_write(held)

    def first_to_leave(self, count: int) -> Sequence[OffloadKey]:
        """The readable keys among the `count` of each pool that come first in the order of leaving; none leaves."""
        return [key for cache in self._caches for key in cache.first_to_leave(count)]

    def grow(self, ready_slots: Sequence[int], *, ended: bool) -> None:
        """Use so many slots of each pool from now on."""
        require_one_each(ready_slots, len(self._caches))
        for cache, count in zip(self._caches, ready_slots, strict=True):
            cache.pool.grow(count, ended=ended)

    def readable_keys(self) -> Iterator[list[OffloadKey]]:
        """All keys that can be read, pool by pool, part by part."""
        for cache in self._caches:
            yield from cache.pool.readable_keys()

    def clear(self, pile: DiscardPile) -> int:
        """Drop every key at once; returns how many were readable."""
        return sum(cache.clear(pile) for cache in self._caches)

    def statistics(self) -> tuple[PoolStatistics, ...]:
        """Slots by state, one entry per pool."""
        return tuple(cache.pool.statistics() for cache in self._caches)

    def check_integrity(self, reads: Sequence[HeldInParts], writes: Sequence[HeldInParts]) -> None:
        """Check every cache, and that slots are held by exactly these transfers (I7)."""
        for cache in self._caches:
            cache.check_integrity(_held_in(cache, reads), _held_in(cache, writes))

    def __repr__(self) -> str:
        return f"CacheSet({', '.join(map(repr, self._caches))})"

    def _runs(self, keys: Sequence[OffloadKey]) -> Sequence[tuple[ChunkCache, Sequence[OffloadKey]]]:
        """The keys in the order given, cut where the group changes."""
        try:
            runs = groupby(keys, key=itemgetter(GROUP_SUFFIX))
            return [(self._cache_by_suffix[suffix], list(run)) for suffix, run in runs]
        except (KeyError, TypeError):
            self._check.require_keys(keys)
            raise

    def _by_cache(self, keys: Sequence[OffloadKey]) -> Sequence[tuple[ChunkCache, Sequence[OffloadKey]]]:
        """All keys of each cache, in the order given."""
        parts: dict[ChunkCache, list[OffloadKey]] = {}
        for key in keys:
            parts.setdefault(self._cache_by_suffix[key[GROUP_SUFFIX]], []).append(key)
        return list(parts.items())

    def _cut_to_room(
        self, chain: Sequence[OffloadKey], protected: Set[OffloadKey], chain_number: int
    ) -> Sequence[OffloadKey]:
        room = {cache: cache.room_for(len(part), protected, chain_number) for cache, part in self._by_cache(chain)}
        for index, key in enumerate(chain):
            cache = self._cache_by_suffix[key[GROUP_SUFFIX]]
            if not room[cache]:
                return chain[:index]
            room[cache] -= 1
        return chain


def _laid_out(part: Sequence[OffloadKey], offered: Sequence[OffloadKey]) -> Sequence[OffloadKey]:
    """The keys of `part` group after group, so that a group's chunks get adjacent slots."""
    chosen = set(part)
    return [key for key in offered if key in chosen]


def _held_in(cache: ChunkCache, records: Sequence[HeldInParts]) -> list[Held]:
    return [held for record in records for owner, held in record.parts if owner is cache]
