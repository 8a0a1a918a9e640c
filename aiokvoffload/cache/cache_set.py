"""The caches of one tier, one per chunk size, addressed by keys of any group. Knows no requests and no tokens."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence, Set
from itertools import groupby, repeat
from operator import itemgetter
from typing import TypeVar

from aiokvoffload.base import LookupResult, OffloadKey
from aiokvoffload.cache.chains import GROUP_SUFFIX, SUFFIX_BYTES, group_suffix, in_chain_order
from aiokvoffload.cache.chunk_cache import ChunkCache
from aiokvoffload.cache.discard import DiscardPile
from aiokvoffload.cache.pool import Held, PoolStatistics
from aiokvoffload.cache.prefix import count_leading, longest_common_position
from aiokvoffload.config import GroupConfig
from aiokvoffload.errors import ArgumentError

_Value = TypeVar("_Value")
_UseOfChain = Callable[[Sequence[OffloadKey], int], None]

Record = Sequence[tuple[ChunkCache, Held]]
"""The slots that one transfer holds, by cache."""


KeysInSlots = tuple[Sequence[OffloadKey], Collection[int], Record]
"""Keys, the slot of each within the pool of its group, and what ends their transfer."""


def as_sequence(values: Iterable[_Value], name: str = "keys") -> Sequence[_Value]:
    """The values as something that is true unless it is empty, which an array is not.

    Raises:
        ArgumentError: they are not several values.
    """
    if isinstance(values, (list, tuple)):
        return values
    try:
        return list(values)
    except TypeError:
        raise ArgumentError(f"{name} must be a sequence, got {values!r}") from None


class CacheSet:
    """One cache per pool, and who uses which.

    What a store of several groups gets, it gets by position: the leading positions for which every pool has room. A
    position is of use only with all of its groups, so where one pool has room for nothing, the store is refused, and no
    pool has evicted anything (I6). Only a policy that declines keys in spite of room is treated pool by pool: what
    the other pools took stands.

    Args:
        caches: the caches.
        groups: for each KV-cache group what its chunks are.
        cache_by_group: for each group its cache.

    Attributes:
        access: counts a use of each key, as the continuation of the chain of a number.
    """

    __slots__ = (
        "_cache_by_suffix",
        "_caches",
        "_groups",
        "_only_cache",
        "_span_by_suffix",
        "_suffixes",
        "access",
    )

    def __init__(
        self, caches: Sequence[ChunkCache], *, groups: Sequence[GroupConfig], cache_by_group: Sequence[ChunkCache]
    ) -> None:
        self._caches = tuple(caches)
        self._groups = tuple(groups)
        self._only_cache = self._caches[0] if len(self._caches) == 1 else None
        self._cache_by_suffix = {group_suffix(index): cache for index, cache in enumerate(cache_by_group)}
        self._span_by_suffix = {group_suffix(index): group.span for index, group in enumerate(groups)}
        self._suffixes = tuple(self._span_by_suffix)
        # One pool for all is the rule: nothing stands between the caller and its policy then.
        by_policy = self._only_cache.policy if self._only_cache is not None else None
        self.access: _UseOfChain = self._access if by_policy is None else by_policy.access

    def require_keys(self, keys: Iterable[OffloadKey]) -> None:
        """Check that all are keys of known groups.

        Raises:
            ArgumentError: one is not; the message shows it.
        """
        for index, key in enumerate(as_sequence(keys)):
            if not isinstance(key, bytes) or len(key) <= SUFFIX_BYTES:
                raise ArgumentError(f"keys[{index}] must be bytes made by make_offload_key, got {key!r}")
            if key[GROUP_SUFFIX] not in self._cache_by_suffix:
                group_idx = int.from_bytes(key[GROUP_SUFFIX], "big")
                raise ArgumentError(f"keys[{index}] is of group {group_idx}, there are {len(self._groups)} groups")

    def require_chain(self, keys: Sequence[OffloadKey]) -> None:
        """The same for many keys at once, in a fraction of the time."""
        try:
            distinct = set(keys)
        except TypeError:  # not hashable, so not bytes
            distinct = None
        if distinct is None or not self._are_keys(distinct):
            self.require_keys(keys)

    def _are_keys(self, some: Set[OffloadKey]) -> bool:
        """The same as an answer, without a loop in Python."""
        try:
            return all(map(bytes.endswith, some, repeat(self._suffixes))) and some.isdisjoint(self._suffixes)
        except TypeError:  # not bytes
            return False

    def in_chain_order(self, keys: Sequence[OffloadKey]) -> Sequence[OffloadKey]:
        """The keys of one call, group after group, as one chain over all groups, head first."""
        if len(self._groups) == 1:
            return keys
        try:
            return in_chain_order(keys, self._span_by_suffix)
        except (KeyError, TypeError):
            self.require_keys(keys)
            raise

    def lookup(self, key: OffloadKey) -> LookupResult:
        """Say what `key` is now."""
        self.require_keys((key,))
        return self._cache_by_suffix[key[GROUP_SUFFIX]].lookup(key)

    def count_leading(self, keys: Sequence[OffloadKey]) -> int:
        """Number of leading keys that are readable or being written."""
        if self._only_cache is not None:
            count = count_leading(keys, self._only_cache.pool.slots)
        else:
            count = self._count_leading_of_runs(keys)
        if count < len(keys):
            unknown = keys[count]  # those before it are known, those behind it do not matter
            if not self._are_keys({unknown}):
                self.require_keys((unknown,))
        return count

    def longest_common_position(self, keys_by_group: Sequence[Sequence[OffloadKey]]) -> int:
        """As in `cache.prefix`, over keys that are readable or being written."""
        keys_by_group = as_sequence(keys_by_group, "keys_by_group")
        if len(keys_by_group) != len(self._groups):
            raise ArgumentError(
                f"keys_by_group must have one entry for each of {len(self._groups)} groups, got {len(keys_by_group)}"
            )
        present = [cache.pool.slots for cache in self._cache_by_suffix.values()]
        try:
            return longest_common_position(keys_by_group, self._groups, present)
        except TypeError:
            for keys in keys_by_group:
                self.require_keys(keys)
            raise

    def absent(self, keys: Sequence[OffloadKey]) -> Sequence[OffloadKey]:
        """The keys that have no slot, in the order given.

        Raises:
            ArgumentError: one of them is no key of a known group, or stands there twice.
        """
        absent: Sequence[OffloadKey]
        try:
            if self._only_cache is None:
                absent = [key for cache, run in self._runs(keys) for key in run if key not in cache.pool.slots]
            elif (slots := self._only_cache.pool.slots).keys().isdisjoint(keys):
                absent = keys
            else:
                absent = [key for key in keys if key not in slots]
            distinct = set(absent)
        except TypeError:
            self.require_keys(keys)
            raise
        if not self._are_keys(distinct):
            self.require_keys(absent)
        if len(distinct) < len(absent):
            key, times = Counter(absent).most_common(1)[0]
            raise ArgumentError(f"keys must be distinct, got {key!r} {times} times")
        return absent

    def pin_leading(self, keys: Sequence[OffloadKey]) -> KeysInSlots:
        """Hold the leading keys that can be read now, for reading."""
        known = keys[: self.count_leading(keys)]  # refuses bad keys before anything is held
        if self._only_cache is not None:
            held_slots, held = self._only_cache.pin_leading(known)
            return known[: len(held_slots)], held_slots, ((self._only_cache, held),)
        slots: list[int] = []
        record = []
        for cache, run in self._runs(known):
            run_slots, held = cache.pin_leading(run)
            slots += run_slots
            record.append((cache, held))
            if len(run_slots) < len(run):
                break
        return known[: len(slots)], slots, record

    def reserve(
        self,
        chain: Sequence[OffloadKey],
        offered: Sequence[OffloadKey],
        protected: Collection[OffloadKey],
        chain_number: int,
    ) -> tuple[KeysInSlots, Sequence[OffloadKey]] | None:
        """Reserve slots for the leading part of `chain` for which every pool has room.

        Args:
            chain: absent, distinct keys in chain order.
            offered: all keys of the call, group after group; the result has this order.
            protected: keys that must stay; all that were given under this number are among them.
            chain_number: number of the request's chain, which they continue.

        Returns:
            The reserved keys and the victims; `None` if there is room for nothing, and nothing has changed (I6).
        """
        if self._only_cache is not None:  # whose policy cuts
            layout = chain if len(self._groups) == 1 else self._laid_out(chain, offered)
            reservation = self._only_cache.reserve(chain, layout, protected, chain_number)
            if reservation is None:
                return None
            held, victims = reservation
            return (list(held.values()), held, ((self._only_cache, held),)), victims
        return self._reserve_by_position(chain, offered, protected, chain_number)

    def complete_read(self, record: Record, failed_keys: Collection[OffloadKey]) -> Collection[OffloadKey]:
        """End a read; returns the keys that were dropped because they could not be read."""
        if len(record) == 1:
            cache, held = record[0]
            return cache.complete_read(held, failed_keys)
        return [key for cache, held in record for key in cache.complete_read(held, failed_keys)]

    def complete_write(self, record: Record, failed_keys: Collection[OffloadKey]) -> Collection[OffloadKey]:
        """End a write; returns the keys that became readable."""
        if len(record) == 1:
            cache, held = record[0]
            return cache.complete_write(held, failed_keys)
        return [key for cache, held in record for key in cache.complete_write(held, failed_keys)]

    def abandon_read(self, record: Record) -> None:
        """End a read of an epoch that is over."""
        for cache, held in record:
            cache.abandon_read(held)

    def abandon_write(self, record: Record) -> None:
        """End a write of an epoch that is over."""
        for cache, held in record:
            cache.abandon_write(held)

    def grow(self, capacities: Sequence[int], *, ended: bool) -> None:
        """Use so many slots of each pool from now on."""
        if len(capacities) != len(self._caches):
            raise ArgumentError(
                f"ready_slots must have one number for each of {len(self._caches)} pools, got {capacities}"
            )
        for cache, capacity in zip(self._caches, capacities, strict=True):
            cache.pool.grow(capacity, ended=ended)

    def clear(self, pile: DiscardPile) -> int:
        """Drop every key at once; returns how many were readable."""
        return sum(cache.clear(pile) for cache in self._caches)

    def statistics(self) -> tuple[PoolStatistics, ...]:
        """Slots by state, one entry per pool."""
        return tuple(cache.statistics() for cache in self._caches)

    def check_integrity(self, reads: Sequence[Record], writes: Sequence[Record]) -> None:
        """Check every cache, and that slots are held by exactly these transfers (I7).

        Raises:
            InternalError: it does not hold.
        """
        for cache in self._caches:
            cache.check_integrity(_held_in(cache, reads), _held_in(cache, writes))

    def __repr__(self) -> str:
        return f"CacheSet({', '.join(map(repr, self._caches))})"

    def _access(self, chain: Sequence[OffloadKey], chain_number: int) -> None:
        for cache, keys in self._by_cache(chain):
            cache.policy.access(keys, chain_number)

    def _count_leading_of_runs(self, keys: Sequence[OffloadKey]) -> int:
        count = 0
        for cache, run in self._runs(keys):
            count += (hits := count_leading(run, cache.pool.slots))
            if hits < len(run):
                break
        return count

    def _runs(self, keys: Sequence[OffloadKey]) -> Sequence[tuple[ChunkCache, Sequence[OffloadKey]]]:
        """The keys in the order given, cut where the group changes."""
        try:
            runs = groupby(keys, key=itemgetter(GROUP_SUFFIX))
            return [(self._cache_by_suffix[suffix], list(run)) for suffix, run in runs]
        except (KeyError, TypeError):
            self.require_keys(keys)
            raise

    def _by_cache(self, keys: Sequence[OffloadKey]) -> Sequence[tuple[ChunkCache, Sequence[OffloadKey]]]:
        """All keys of each cache, in the order given."""
        parts: dict[ChunkCache, list[OffloadKey]] = {}
        for key in keys:
            parts.setdefault(self._cache_by_suffix[key[GROUP_SUFFIX]], []).append(key)
        return list(parts.items())

    def _laid_out(self, part: Sequence[OffloadKey], offered: Sequence[OffloadKey]) -> Sequence[OffloadKey]:
        """The keys of `part` group after group, so that a group's chunks get adjacent slots."""
        chosen = set(part)
        return [key for key in offered if key in chosen]

    def _reserve_by_position(
        self,
        chain: Sequence[OffloadKey],
        offered: Sequence[OffloadKey],
        protected: Collection[OffloadKey],
        chain_number: int,
    ) -> tuple[KeysInSlots, Sequence[OffloadKey]] | None:
        record: list[tuple[ChunkCache, Held]] = []
        victims: list[OffloadKey] = []
        for cache, part in self._by_cache(self._cut_to_room(chain, protected, chain_number)):
            reservation = cache.reserve(part, self._laid_out(part, offered), protected, chain_number)
            if reservation is not None:
                held, gone = reservation
                record.append((cache, held))
                victims += gone
        if not record:
            return None
        slot_by_key = {key: slot for _, held in record for slot, key in held.items()}
        keys = [key for key in offered if key in slot_by_key]
        return (keys, [slot_by_key[key] for key in keys], record), victims

    def _cut_to_room(
        self, chain: Sequence[OffloadKey], protected: Collection[OffloadKey], chain_number: int
    ) -> Sequence[OffloadKey]:
        room = {cache: cache.room_for(len(part), protected, chain_number) for cache, part in self._by_cache(chain)}
        for index, key in enumerate(chain):
            cache = self._cache_by_suffix[key[GROUP_SUFFIX]]
            if not room[cache]:
                return chain[:index]
            room[cache] -= 1
        return chain


def _held_in(cache: ChunkCache, records: Sequence[Record]) -> list[Held]:
    return [held for record in records for owner, held in record if owner is cache]
