"""The facts of the CPU tier: which keys are resident, in which slots, who pins them, and who leaves.

It moves no byte and waits for nothing; it says what is to be done and is told how it went. One owner thread calls it.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict
from itertools import count as counted

from aiokvoffload.base import (
    EventKind,
    LookupResult,
    OffloadingEvent,
    OffloadingManager,
    OffloadKey,
    PrepareLoadOutput,
    PrepareStoreOutput,
    RemovalReason,
    ReqContext,
    ResidentPart,
)
from aiokvoffload.cache.chains import group_suffix
from aiokvoffload.cache.discard import DiscardPile
from aiokvoffload.cache.event_log import EventLog
from aiokvoffload.cache.key_check import KeyCheck, as_sequence
from aiokvoffload.cache.making import make_cache
from aiokvoffload.cache.named import make_named
from aiokvoffload.cache.offers import OfferCounter
from aiokvoffload.cache.pool import PoolStatistics
from aiokvoffload.cache.statistics import ManagerCounts, ManagerStatistics
from aiokvoffload.cache.tier_cache import Record, Reservation
from aiokvoffload.cache.tokens import TokenBook
from aiokvoffload.cache.uses import RequestUses
from aiokvoffload.config import GroupConfig
from aiokvoffload.cpu.common import CPU_MEDIUM, CPU_TIER, KnownSlots, PoolShape
from aiokvoffload.errors import ArgumentError, ConfigError

_SHED_PER_CALL, _SHED_PER_KEY = 128, 4
"""Entries of dropped containers that are freed in passing: more than the same call can add to living ones."""

# Named here, since looking up a member of an enumeration takes as long as a call.
_STORED, _REMOVED, _EVICTED = EventKind.STORED, EventKind.REMOVED, RemovalReason.EVICTED

_NONE_FAILED: Collection[OffloadKey] = ()
"""The one empty tuple that there is; whoever gives another collection has it looked through."""


class CPUOffloadingManager(OffloadingManager):
    """The manager of the primary tier: one pool per distinct chunk size, one policy per pool.

    A store that does not fit is cut to its leading part, since a prefix is of use without its tail; over several pools
    it is cut by position, to what all of them have room for, and refused as a whole if one has room for nothing (see
    `CacheSet`). Keys that the request itself uses do not leave for its own store.

    Args:
        pools: shapes of the pools; each group uses exactly one.
        groups: one entry per KV-cache group, in group order.
        policy: name of the cache policy (see `aiokvoffload.registry`).
        store_threshold: a key is stored when it is offered by this many-th request; 1 stores at once. A chain is stored
            up to its first key that is not yet due, since what follows is of no use without it; only chunks of a
            windowed group are judged one by one.
        store_tracker_keys: most keys whose offers are counted.
        max_pending_events: events kept until `take_events`; beyond it there is one that says so (`RemovalReason.LOST`).
        grows: whether the pools have no slots before `grow` says so.

    Raises:
        ConfigError: the pools do not serve each group once, a limit is below 1, or the policy is unknown.
    """

    def __init__(
        self,
        pools: Sequence[PoolShape],
        *,
        groups: Sequence[GroupConfig],
        policy: str = "adaptive",
        store_threshold: int = 1,
        store_tracker_keys: int = 64_000,
        max_pending_events: int = 10_000,
        grows: bool = False,
    ) -> None:
        _require_at_least_one("store_threshold", store_threshold)
        _require_at_least_one("store_tracker_keys", store_tracker_keys)
        _require_at_least_one("max_pending_events", max_pending_events)
        self._cache = make_cache(pools, groups, policy, grows=grows)
        self._key_check = KeyCheck(len(groups))
        self._windowed = {group_suffix(index) for index, group in enumerate(groups) if group.window_chunks is not None}
        self._offers = OfferCounter(store_threshold, store_tracker_keys) if store_threshold > 1 else None
        self._requests: dict[str, RequestUses] = {}
        self._chain_numbers = counted()
        self._loads: TokenBook[Record] = TokenBook("prepare_load", 0)
        self._stores: TokenBook[Record] = TokenBook("prepare_store", 1)
        self._policy = policy
        self._events = EventLog(CPU_MEDIUM, CPU_TIER, num_groups=len(groups), max_events=max_pending_events)
        self._counts = ManagerCounts()
        self._discarded = DiscardPile()
        self._pool_of_group = {group_idx: index for index, pool in enumerate(pools) for group_idx in pool.groups}
        self._quarantined: set[int] = set()

    def lookup(self, key: OffloadKey, ctx: ReqContext) -> LookupResult:
        """Say what `key` is now; changes nothing."""
        return self._cache.lookup(key)

    def lookup_prefix(self, keys: Sequence[OffloadKey], ctx: ReqContext) -> int:
        """Number of leading keys that are readable or being written; changes nothing that anybody else sees."""
        return self._cache.count_leading(
            keys if type(keys) is tuple else as_sequence(keys), self._requests.get(ctx.req_id)
        )

    def absent(self, keys: Sequence[OffloadKey], ctx: ReqContext) -> Sequence[OffloadKey]:
        """The distinct keys that have no slot."""
        return self._cache.absent(as_sequence(keys))

    def lookup_groups(self, keys_by_group: Sequence[Sequence[OffloadKey]], ctx: ReqContext) -> int:
        """The longest common position (see `cache.prefix`); `keys_by_group` has the keys from the sequence's start."""
        return self._cache.longest_common_position(keys_by_group)

    def prepare_load(self, keys: Sequence[OffloadKey], ctx: ReqContext) -> PrepareLoadOutput:
        """Pin the leading readable keys; asserts nothing about what an earlier lookup said (I3)."""
        keys = keys if type(keys) is tuple else as_sequence(keys)
        if self._discarded.containers:
            self._discarded.shed(_SHED_PER_CALL + _SHED_PER_KEY * len(keys))
        uses = self._requests.get(ctx.req_id) or self._single_use()  # before anything is pinned, since it may refuse
        held = self._cache.use_pinning(keys, uses)
        served = len(held.keys)
        self._counts.loaded += served
        self._counts.missed += len(keys) - served
        token = self._loads.issue(held if served else None)
        return make_named(PrepareLoadOutput, (token, held.keys, KnownSlots(held.slots)))

    def complete_load(self, token: int, failed_keys: Collection[OffloadKey] = _NONE_FAILED) -> bool:
        """Release a load's pins; failed keys are a MISS at once, their slots free after the last reader."""
        failed = () if failed_keys is _NONE_FAILED else self._part_of(self._loads, token, failed_keys)
        record = self._loads.take(token)
        is_current = token >= self._loads.epoch_start
        if record is None:
            return is_current
        if not is_current:
            self._cache.abandon_read(record)
        elif dropped := self._cache.complete_read(record, failed):
            self._counts.failed_loads += len(dropped)
            self._events.add(_REMOVED, dropped, RemovalReason.FAILED)
        return is_current

    def prepare_store(
        self, keys: Sequence[OffloadKey], ctx: ReqContext, *, may_decline: bool = True
    ) -> PrepareStoreOutput | None:
        """Reserve slots for what is absent and worth storing; `None` if nothing fits, and nothing has left (I6).

        Args:
            keys: in chain order.
            ctx: who offers them.
            may_decline: whether the policy may decline what would fit.
        """
        keys = keys if type(keys) is tuple else as_sequence(keys)
        if self._discarded.containers:
            self._discarded.shed(_SHED_PER_CALL + _SHED_PER_KEY * len(keys))
        uses = self._requests.get(ctx.req_id) or self._single_use()
        absent = self._cache.use_sifting(keys, uses)
        wanted = absent if self._offers is None else self._worth_storing(absent, uses, self._offers)
        if not wanted:
            return self._nothing_to_store()
        reservation = self._cache.reserve(wanted, keys, uses.used.keys(), uses.chain_number, may_decline=may_decline)
        if reservation is None:
            self._counts.refused += len(wanted)
            return None
        self._counts.refused += len(wanted) - len(reservation[0].keys)
        return self._reserved(reservation)

    def prepare_promotion(
        self, keys: Sequence[OffloadKey], ctx: ReqContext, *, own_may_leave: bool = False
    ) -> PrepareStoreOutput | None:
        """`prepare_store` for chunks that a lower tier has and a request waits for: none is declined for its worth.

        Args:
            keys: absent, of one group.
            ctx: who wants them.
            own_may_leave: where nothing else can leave, the request's own keys may, unless they are pinned: a chain may
                be longer than this tier, and what a load has copied is needed here no more.
        """
        keys = as_sequence(keys)
        uses = self._requests.get(ctx.req_id) or self._single_use()
        absent = self._cache.use_sifting(keys, uses)
        if not absent:
            return self._nothing_to_store()
        reservation = self._cache.reserve(absent, keys, uses.used.keys(), uses.chain_number, may_decline=False)
        if reservation is None and own_may_leave:
            # Under a new number, since whatever was given under the request's own is never looked at.
            reservation = self._cache.reserve(absent, keys, frozenset(), next(self._chain_numbers), may_decline=False)
        return None if reservation is None else self._reserved(reservation)

    def quarantine_store(self, token: int) -> None:
        """Drop the keys of a store that may never end; its slots are quarantined until `complete_store`."""
        record = self._stores.peek(token)
        if record is None or token < self._stores.epoch_start or token in self._quarantined:
            return
        self._counts.failed_stores += len(record.keys)
        self._cache.quarantine_write(record)
        self._quarantined.add(token)

    def pin(self, keys: Sequence[OffloadKey]) -> PrepareLoadOutput:
        """`prepare_load` for a lower tier that reads the leading keys: no use is counted. Ends by `complete_load`."""
        held = self._cache.pin_leading(as_sequence(keys))
        token = self._loads.issue(held if held.keys else None)
        return PrepareLoadOutput(token, held.keys, KnownSlots(held.slots))

    def first_to_leave(self, count: int) -> Sequence[OffloadKey]:
        """The readable keys among the `count` of each pool that come first in the order of leaving; none leaves."""
        return self._cache.first_to_leave(count)

    def slots_for(self, group_idx: int) -> PoolStatistics:
        """Slots by state of the pool that a group uses."""
        return self._cache.statistics()[self._pool_of_group[group_idx]]

    def _nothing_to_store(self) -> PrepareStoreOutput:
        return PrepareStoreOutput(self._stores.issue(None), (), KnownSlots(()), ())

    def _reserved(self, reservation: Reservation) -> PrepareStoreOutput:
        held, evicted = reservation
        if evicted:
            self._counts.evicted += len(evicted)
            self._events.add(_REMOVED, evicted[::-1], _EVICTED)
        return make_named(PrepareStoreOutput, (self._stores.issue(held), held.keys, KnownSlots(held.slots), evicted))

    def complete_store(self, token: int, failed_keys: Collection[OffloadKey] = _NONE_FAILED) -> bool:
        """Make a store's keys readable, but for the failed ones."""
        failed = () if failed_keys is _NONE_FAILED else self._part_of(self._stores, token, failed_keys)
        record = self._stores.take(token)
        is_current = token >= self._stores.epoch_start
        if record is None:
            return is_current
        if token in self._quarantined or not is_current:
            self._quarantined.discard(token)
            self._cache.abandon_write(record)
            is_current = False
        else:
            stored = self._cache.complete_write(record, failed)
            self._counts.stored += len(stored)
            self._counts.failed_stores += len(failed)
            self._events.add(_STORED, stored)
        return is_current

    def touch(self, keys: Sequence[OffloadKey], ctx: ReqContext) -> None:
        """Count a use of the keys by this request; some 200 µs for 512 keys, so a long chain is touched in runs."""
        keys = as_sequence(keys)
        self._key_check.require_keys(keys)
        self._cache.use(keys, self._requests.get(ctx.req_id) or self._single_use())

    def on_new_request(self, ctx: ReqContext) -> None:
        """Begin a request.

        Raises:
            ArgumentError: one with this `req_id` is begun and not finished.
        """
        if ctx.req_id in self._requests:
            raise ArgumentError(f"req_id {ctx.req_id!r} is that of a request that is not finished")
        self._requests[ctx.req_id] = RequestUses(next(self._chain_numbers))

    def on_request_finished(self, ctx: ReqContext) -> None:
        """End a request, if it was begun. Completions of what it prepared may still follow."""
        self._requests.pop(ctx.req_id, None)

    def grow(self, ready_slots: Sequence[int], *, ended: bool = False) -> None:
        """Use so many slots of each pool from now on; see `OffloadingManager.grow`."""
        self._cache.grow(ready_slots, ended=ended)

    def take_events(self) -> list[OffloadingEvent]:
        """The changes since the last call; only so many are kept as `max_pending_events` says."""
        return self._events.take()

    def resident_keys(self) -> Iterator[ResidentPart]:
        """The readable keys, part by part."""
        return (ResidentPart(CPU_MEDIUM, CPU_TIER, keys) for keys in self._cache.readable_keys())

    def reset_cache(self) -> int:
        """Drop every key; slots under way stay quarantined until their transfers end."""
        cleared = self._cache.clear(self._discarded)
        self._loads.begin_epoch()
        self._stores.begin_epoch()
        self._events.add(EventKind.CLEARED, (), RemovalReason.RESET)
        self._counts.cleared += cleared
        self._counts.resets += 1
        return cleared

    def statistics(self) -> ManagerStatistics:
        """Slots by state, what is under way, and the fates of keys so far."""
        return ManagerStatistics(
            pools=self._cache.statistics(),
            requests=len(self._requests),
            loads_in_flight=len(self._loads),
            stores_in_flight=len(self._stores),
            dropped_events=self._events.dropped_count,
            policy=self._policy,
            **asdict(self._counts),
        )

    def check_integrity(self) -> None:
        """Check that slots add up (I7), and that exactly the transfers under way hold some.

        Raises:
            InternalError: it does not hold.
        """
        self._cache.check_integrity(self._loads.open_records(), self._stores.open_records())

    def __repr__(self) -> str:
        return (
            f"CPUOffloadingManager({self._cache!r}, {len(self._requests)} requests, {len(self._loads)} loads, "
            f"{len(self._stores)} stores)"
        )

    def _single_use(self) -> RequestUses:
        """What a request that was not begun has used so far; it uses once and is gone."""
        return RequestUses(next(self._chain_numbers))

    def _part_of(
        self, book: TokenBook[Record], token: int, failed_keys: Collection[OffloadKey]
    ) -> Collection[OffloadKey]:
        """`failed_keys`, each of which must be of the transfer."""
        record = book.peek(token)
        if record is None:
            return ()
        try:
            failed = set(failed_keys)
        except TypeError:
            raise ArgumentError(f"failed_keys must be keys of this transfer, got {failed_keys!r}") from None
        if failed and (foreign := failed.difference(record.keys)):
            raise ArgumentError(f"failed_keys must be keys of this transfer, got {next(iter(foreign))!r}")
        return failed

    def _worth_storing(
        self, absent: Sequence[OffloadKey], uses: RequestUses, offers: OfferCounter
    ) -> Sequence[OffloadKey]:
        offers.count(uses.count_offer(absent))
        wanted = offers.worth_storing(absent, self._windowed)
        self._counts.filtered += len(absent) - len(wanted)
        return wanted


def _require_at_least_one(name: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{name} must be a whole number of at least 1, got {value!r}")
