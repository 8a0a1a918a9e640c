"""The cache of a tier with one full group, as most models have: one pool, one policy, and nothing in between."""

from collections.abc import Callable, Iterator, Sequence, Set

from aiokvoffload.base import CachePolicy, LookupResult, OffloadKey, Residents
from aiokvoffload.base.untracked import MAX_TRACKED, Untracked
from aiokvoffload.cache.chunk_cache import LONG, ChunkCache
from aiokvoffload.cache.key_check import KeyCheck, as_sequence
from aiokvoffload.cache.pool import Held, PoolStatistics
from aiokvoffload.cache.tier_cache import TierCache, require_one_each
from aiokvoffload.cache.uses import RequestUses
from aiokvoffload.errors import ArgumentError


class SoleCache(ChunkCache, TierCache[Held]):
    """One cache for one group without a window; its records are what the pool gives.

    Args:
        num_slots: its capacity in chunks.
        make_policy: makes the policy that orders them.
        span: positions that a chunk covers.
        grows: whether slots come later.
    """

    __slots__ = ("_check", "_span")

    def __init__(
        self, num_slots: int, make_policy: Callable[[Residents], CachePolicy], *, span: int, grows: bool = False
    ) -> None:
        super().__init__(num_slots, make_policy, grows=grows)
        self._check = KeyCheck(1)
        self._span = span

    def lookup(self, key: OffloadKey) -> LookupResult:
        """Say what `key` is now."""
        self._check.require_key(key)
        return super().lookup(key)

    def count_leading(self, keys: Sequence[OffloadKey], uses: RequestUses | None) -> int:
        """Number of the leading keys that are readable or being written; a request remembers their slots."""
        slots = self.find_leading(keys)
        if slots and uses is not None:
            # Asked here, since most chains are short, and this is two calls less.
            known = (keys, slots) if len(keys) <= MAX_TRACKED else (Untracked(keys), Untracked(slots))
            uses.found = (*known, self.pool.removals, 0)
        return len(slots)

    def find_leading(self, keys: Sequence[OffloadKey]) -> tuple[int, ...]:
        """The slots of the leading keys that are readable or being written."""
        try:
            # Asked here too, since a short chain is most often what it is, and this is a call less.
            slots = self.pool.index.find_leading(keys) if len(keys) < LONG else self.leading_slots(keys)
        except (IndexError, TypeError):
            self._check.refuse(keys)
            raise
        if (count := len(slots)) < len(keys):  # those before it are known, those behind it do not matter
            self._check.require_key(keys[count], f"keys[{count}]")
        return slots

    def longest_common_position(self, keys_by_group: Sequence[Sequence[OffloadKey]]) -> int:
        """The position up to which the group has its prefix."""
        keys_by_group = as_sequence(keys_by_group, "keys_by_group")
        if len(keys_by_group) != 1:
            raise ArgumentError(f"keys_by_group must have one entry for each of 1 groups, got {len(keys_by_group)}")
        return len(self.find_leading(as_sequence(keys_by_group[0]))) * self._span

    def absent(self, keys: Sequence[OffloadKey]) -> Sequence[OffloadKey]:
        """The keys that have no slot, in the order given."""
        return self._sift(keys)[0]

    def use(self, keys: Sequence[OffloadKey], uses: RequestUses) -> None:
        """Count a use of each key that a request has not used before."""
        self.access(uses.count_use(keys), uses.chain_number)

    def use_sifting(self, keys: Sequence[OffloadKey], uses: RequestUses) -> Sequence[OffloadKey]:
        """The same; returns the keys that have no slot, in the order given."""
        absent, once = self._sift(keys)
        new = uses.count_use(keys, once)
        if absent is not keys:
            self.access(new, uses.chain_number)
        elif new:
            self._policy.access((), (), new, uses.chain_number)
        return absent

    def _sift(self, keys: Sequence[OffloadKey]) -> tuple[Sequence[OffloadKey], dict[OffloadKey, None]]:
        """The keys that have no slot, in the order given, and all keys once."""
        try:
            once = dict.fromkeys(keys)
            absent = self.pool.index.absent(keys)
        except (IndexError, TypeError):
            self._check.refuse(keys)
            raise
        self._check.require_keys(absent)
        if len(once) < len(keys):  # else there is nothing to ask
            self._check.require_distinct(absent)
        return absent, once

    def pin_leading(self, keys: Sequence[OffloadKey]) -> Held:
        """Hold the leading keys that can be read now, for reading."""
        return self.pool.pin_found(keys, self.find_leading(keys))

    def use_pinning(self, keys: Sequence[OffloadKey], uses: RequestUses) -> Held:
        """The same, and count a use of those keys; where they were looked up, they need not be looked for again."""
        slots = uses.slots_of(keys, self.pool.removals)
        held = self.pool.pin_found(keys, self.find_leading(keys) if slots is None else slots)
        new = uses.count_use(held.keys)
        if new is not held.keys:
            self.access(new, uses.chain_number)
        elif new:
            self._policy.access(new, held.slots, (), uses.chain_number)
        return held

    def reserve(
        self,
        chain: Sequence[OffloadKey],
        offered: Sequence[OffloadKey],
        protected: Set[OffloadKey],
        chain_number: int,
        *,
        may_decline: bool = True,
    ) -> tuple[Held, Sequence[OffloadKey]] | None:
        """Reserve slots for a leading part of `chain`, evicting where there is no room."""
        return self.reserve_chain(chain, chain, protected, chain_number, may_decline=may_decline)

    def grow(self, ready_slots: Sequence[int], *, ended: bool) -> None:
        """Use so many slots from now on."""
        require_one_each(ready_slots, 1)
        self.pool.grow(ready_slots[0], ended=ended)

    def readable_keys(self) -> Iterator[list[OffloadKey]]:
        """All keys that can be read, part by part."""
        return self.pool.readable_keys()

    def statistics(self) -> tuple[PoolStatistics, ...]:
        """Slots by state."""
        return (self.pool.statistics(),)
