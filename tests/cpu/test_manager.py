import itertools
from collections import deque
from collections.abc import Callable, Sequence, Set
from typing import Any

import numpy as np
import pytest

from aiokvoffload.base import (
    Admission,
    EventKind,
    LookupResult,
    OffloadingEvent,
    OffloadKey,
    PrepareLoadOutput,
    RemovalReason,
    ReqContext,
    Residents,
    make_offload_key,
)
from aiokvoffload.cache.policies.lru import LRUPolicy
from aiokvoffload.config import GroupConfig
from aiokvoffload.cpu.common import CPULoadStoreSpec, PoolShape
from aiokvoffload.cpu.manager import CPUOffloadingManager
from aiokvoffload.errors import ArgumentError, ConfigError, InternalError
from aiokvoffload.registry import BUILTIN
from tests.interpreter import turns_given_away

ONE_OFF = ReqContext("not begun")
POLICIES = tuple(BUILTIN["policies"])
UNCHOOSY = tuple(name for name in POLICIES if name not in {"gap", "adaptive"})
"""Policies that take whatever there is room for."""


def make_chain(name: str, num_keys: int, group_idx: int = 0) -> list[OffloadKey]:
    return [make_offload_key(f"{name}/{number:05}".encode(), group_idx) for number in range(num_keys)]


def make_manager(
    num_slots: int = 8, policy: str = "lru", store_threshold: int = 1, **limits: Any
) -> CPUOffloadingManager:
    return CPUOffloadingManager(
        [PoolShape((0,), 4096, num_slots)],
        groups=[GroupConfig()],
        policy=policy,
        store_threshold=store_threshold,
        **limits,
    )


def make_hybrid(full_slots: int, window_slots: int) -> CPUOffloadingManager:
    """Group 0 is full, group 1 has a window of 2 chunks of twice the span; each has a pool of its own."""
    return CPUOffloadingManager(
        [PoolShape((0,), 4096, full_slots), PoolShape((1,), 8192, window_slots)],
        groups=[GroupConfig(), GroupConfig(span=2, window_chunks=2)],
    )


def slots_of(output: PrepareLoadOutput) -> list[int]:
    assert isinstance(output.spec, CPULoadStoreSpec)
    slots: list[int] = output.spec.chunk_ids.tolist()
    return slots


def store(manager: CPUOffloadingManager, keys: Sequence[OffloadKey], ctx: ReqContext = ONE_OFF) -> list[OffloadKey]:
    """Store at once; returns the victims."""
    output = manager.prepare_store(keys, ctx)
    assert output is not None
    manager.complete_store(output.token)
    manager.check_integrity()
    return list(output.evicted_keys)


def load(manager: CPUOffloadingManager, keys: Sequence[OffloadKey], ctx: ReqContext = ONE_OFF) -> int:
    output = manager.prepare_load(keys, ctx)
    manager.complete_load(output.token)
    return len(output.keys)


def resident(manager: CPUOffloadingManager, keys: Sequence[OffloadKey]) -> list[OffloadKey]:
    return [key for key in keys if manager.lookup(key, ONE_OFF) is LookupResult.HIT]


def begin(manager: CPUOffloadingManager, name: str) -> ReqContext:
    ctx = ReqContext(name)
    manager.on_new_request(ctx)
    return ctx


# Two phases


def test_a_key_is_a_hit_only_after_its_store_is_complete() -> None:
    """I4."""
    manager, chain = make_manager(), make_chain("a", 2)
    assert manager.lookup(chain[0], ONE_OFF) is LookupResult.MISS
    output = manager.prepare_store(chain, ONE_OFF)
    assert output is not None
    assert manager.lookup(chain[0], ONE_OFF) is LookupResult.HIT_PENDING
    assert manager.lookup_prefix(chain, ONE_OFF) == 2
    assert manager.prepare_load(chain, ONE_OFF).keys == ()
    assert manager.complete_store(output.token)
    assert manager.lookup(chain[0], ONE_OFF) is LookupResult.HIT
    manager.check_integrity()


def test_slots_stand_in_key_order_and_are_adjacent() -> None:
    manager, chain = make_manager(), make_chain("a", 5)
    output = manager.prepare_store(chain, ONE_OFF)
    assert output is not None
    assert output.keys_to_store == tuple(chain)
    assert output.spec.chunk_ids.tolist() == [0, 1, 2, 3, 4]  # type: ignore[attr-defined]
    manager.complete_store(output.token)
    assert manager.prepare_load(chain[1:3], ONE_OFF).spec.chunk_ids.tolist() == [1, 2]  # type: ignore[attr-defined]


def test_a_failed_store_leaves_no_trace() -> None:
    """I4."""
    manager, chain = make_manager(), make_chain("a", 3)
    output = manager.prepare_store(chain, ONE_OFF)
    assert output is not None
    manager.complete_store(output.token, failed_keys=chain[1:])
    assert resident(manager, chain) == chain[:1]
    assert [event.keys for event in manager.take_events()] == [tuple(chain[:1])]
    assert manager.statistics().pools[0].free == 7
    manager.check_integrity()


def test_only_what_is_absent_is_stored_and_a_second_store_reserves_nothing() -> None:
    """Fault 18: one transfer for a key that two offer."""
    manager, chain = make_manager(), make_chain("a", 4)
    first = manager.prepare_store(chain[:2], ONE_OFF)
    second = manager.prepare_store(chain, ONE_OFF)
    assert first is not None
    assert second is not None
    assert second.keys_to_store == chain[2:]
    third = manager.prepare_store(chain, ONE_OFF)
    assert third is not None
    assert third.keys_to_store == ()
    assert manager.complete_store(third.token)
    assert manager.complete_store(second.token)
    assert manager.lookup_prefix(chain[2:], ONE_OFF) == 2
    manager.check_integrity()


@pytest.mark.parametrize("policy", POLICIES)
def test_a_load_after_an_eviction_gets_what_is_really_there(policy: str) -> None:
    """Fault 13, I3: between a lookup and a load anything may go."""
    manager, chain = make_manager(4, policy), make_chain("a", 4)
    store(manager, chain)
    assert manager.lookup_prefix(chain, ONE_OFF) == 4
    store(manager, make_chain("b", 2))
    output = manager.prepare_load(chain, ONE_OFF)
    assert output.keys == tuple(chain[:2])
    assert len(output.spec.chunk_ids) == 2  # type: ignore[attr-defined]
    assert manager.statistics().missed == 2


@pytest.mark.parametrize("policy", POLICIES)
def test_a_pinned_key_is_never_evicted(policy: str) -> None:
    """Fault 14."""
    manager, chain = make_manager(4, policy), make_chain("a", 4)
    store(manager, chain)
    output = manager.prepare_load(chain, ONE_OFF)
    assert manager.prepare_store(make_chain("b", 1), ONE_OFF) is None
    manager.complete_load(output.token)
    assert store(manager, make_chain("b", 1)) == chain[3:]


@pytest.mark.parametrize("num_slots", [8, 20_000])
def test_a_load_of_what_was_looked_up_gets_the_slots_of_now(num_slots: int) -> None:
    """I3: a lookup's slots are used again only while no key has lost its own."""
    manager = make_manager(num_slots)
    chain, ctx = make_chain("a", 6), ReqContext("looks")
    store(manager, chain)
    manager.on_new_request(ctx)
    assert manager.lookup_prefix(chain, ctx) == 6
    first = manager.prepare_load(chain[:2], ctx)
    assert first.keys == tuple(chain[:2])
    assert slots_of(first) == [0, 1]
    manager.complete_load(first.token, chain[1:2])
    store(manager, make_chain("b", 1))  # into the slot that has become free
    second = manager.prepare_load(chain[2:4], ctx)
    assert slots_of(second) == [2, 3]
    assert manager.prepare_load(chain[1:3], ctx).keys == ()
    manager.complete_load(second.token)
    manager.on_request_finished(ctx)
    manager.check_integrity()


def test_a_load_of_other_keys_than_were_looked_up_gets_theirs() -> None:
    manager = make_manager()
    chain, other, ctx = make_chain("a", 4), make_chain("b", 4), ReqContext("looks")
    store(manager, chain)
    store(manager, other)
    manager.on_new_request(ctx)
    assert manager.lookup_prefix(chain, ctx) == 4
    for keys in (other[:2], chain[1:3], chain[:2], other[2:], chain):
        output = manager.prepare_load(keys, ctx)
        found = dict(zip((*chain, *other), range(8), strict=True))
        assert slots_of(output) == [found[key] for key in keys]
        manager.complete_load(output.token)
    manager.on_request_finished(ctx)
    manager.check_integrity()


@pytest.mark.parametrize("count", [4, 200])
def test_a_list_of_keys_that_is_changed_after_its_lookup_gets_the_slots_of_what_is_in_it(count: int) -> None:
    """I5."""
    manager, ctx = make_manager(2 * count), ReqContext("looks")
    chain, other = make_chain("a", count), make_chain("b", count)
    store(manager, chain)
    store(manager, other)
    manager.on_new_request(ctx)
    keys = list(chain)
    assert manager.lookup_prefix(keys, ctx) == count
    keys[:] = other
    output = manager.prepare_load(keys, ctx)
    assert slots_of(output) == list(range(count, 2 * count))
    assert manager.complete_load(output.token, [])
    manager.on_request_finished(ctx)
    manager.check_integrity()


def test_a_lookup_changes_nothing() -> None:
    """Fault 15."""
    manager, chain = make_manager(4), make_chain("a", 4)
    store(manager, chain)
    before = manager.statistics()
    for _ in range(3):
        manager.lookup_prefix(chain[2:], ONE_OFF)
        manager.lookup(chain[3], ONE_OFF)
        manager.lookup_groups([chain], ONE_OFF)
    assert manager.statistics() == before
    assert store(manager, make_chain("b", 2)) == chain[:1:-1]


@pytest.mark.parametrize("policy", UNCHOOSY)
def test_a_victim_is_found_though_the_oldest_keys_are_pinned(policy: str) -> None:
    """Fault 20."""
    manager, old, new = make_manager(4, policy), make_chain("old", 2), make_chain("new", 2)
    store(manager, old)
    output = manager.prepare_load(old, ONE_OFF)
    store(manager, new)
    load(manager, new)
    assert store(manager, make_chain("x", 1)) == new[1:]
    manager.complete_load(output.token)
    manager.check_integrity()


# Refusal


@pytest.mark.parametrize("policy", UNCHOOSY)
def test_a_refused_store_changes_nothing_and_is_refused_at_once(policy: str) -> None:
    """I6, faults 17 and 30."""
    manager, chain = make_manager(2, policy), make_chain("a", 2)
    store(manager, chain)
    manager.take_events()
    output = manager.prepare_load(chain, ONE_OFF)
    refused = make_chain("b", 3)
    assert manager.prepare_store(refused, ONE_OFF) is None
    assert manager.lookup(refused[0], ONE_OFF) is LookupResult.MISS
    assert manager.take_events() == []
    assert manager.statistics().refused == 3
    manager.complete_load(output.token)
    assert len(store(manager, refused[:2])) == 2


@pytest.mark.parametrize("policy", POLICIES)
def test_a_store_that_does_not_fit_is_cut_to_its_head(policy: str) -> None:
    manager, chain = make_manager(4, policy), make_chain("a", 6)
    output = manager.prepare_store(chain, ONE_OFF)
    assert output is not None
    assert output.keys_to_store == tuple(chain[:4])
    manager.complete_store(output.token)
    assert resident(manager, chain) == chain[:4]
    assert manager.statistics().refused == 2


@pytest.mark.parametrize("policy", POLICIES)
def test_a_request_does_not_evict_its_own_chain(policy: str) -> None:
    manager, chain = make_manager(4, policy), make_chain("a", 6)
    ctx = begin(manager, "r")
    store(manager, chain[:3], ctx)
    output = manager.prepare_store(chain[3:], ctx)
    assert output is not None
    assert output.keys_to_store == tuple(chain[3:4])
    assert not output.evicted_keys
    assert manager.prepare_store(chain[4:], ctx) is None


# Tokens


def test_a_token_releases_once_and_only_its_own_pins() -> None:
    """Fault 16."""
    manager, chain = make_manager(), make_chain("a", 2)
    store(manager, chain)
    first, second = (manager.prepare_load(chain, ONE_OFF) for _ in range(2))
    assert manager.complete_load(first.token)
    assert manager.complete_load(first.token)
    assert manager.statistics().pools[0].pinned == 2
    manager.check_integrity()
    assert manager.complete_load(second.token)
    assert manager.statistics().pools[0].pinned == 0


def test_a_settled_token_no_longer_fails_keys() -> None:
    """Fault 16: a second completion changes nothing, whatever it says."""
    manager, chain = make_manager(), make_chain("a", 2)
    store(manager, chain)
    output = manager.prepare_load(chain, ONE_OFF)
    manager.complete_load(output.token)
    manager.complete_load(output.token, failed_keys=chain)
    assert resident(manager, chain) == chain


def test_a_token_never_given_is_refused() -> None:
    """Fault 16."""
    manager, chain = make_manager(), make_chain("a", 2)
    stored = manager.prepare_store(chain, ONE_OFF)
    assert stored is not None
    for token in (-2, stored.token, stored.token + 1, 10**6):
        with pytest.raises(ArgumentError, match=f"token must be one that prepare_load gave, got {token}"):
            manager.complete_load(token)
    for token in (-1, stored.token + 2, stored.token + 1):
        with pytest.raises(ArgumentError, match="token must be one that prepare_store gave"):
            manager.complete_store(token)
    manager.complete_store(stored.token)
    manager.check_integrity()


def test_settled_tokens_are_not_remembered() -> None:
    """I11."""
    manager, chain = make_manager(), make_chain("a", 2)
    store(manager, chain)
    for _ in range(100):
        load(manager, chain)
        store(manager, chain)
        assert load(manager, make_chain("missing", 1)) == 0
    assert (len(manager._loads), len(manager._stores)) == (0, 0)


# Failed loads


def test_a_key_that_failed_to_load_is_a_miss_at_once_and_its_slot_is_free_after_the_last_reader() -> None:
    manager, chain = make_manager(2), make_chain("a", 2)
    store(manager, chain)
    first, second = (manager.prepare_load(chain, ONE_OFF) for _ in range(2))
    manager.complete_load(first.token, failed_keys=chain[1:])
    assert resident(manager, chain) == chain[:1]
    pool = manager.statistics().pools[0]
    assert (pool.pinned, pool.quarantined, pool.free) == (1, 1, 0)
    assert manager.prepare_store(chain[1:], ONE_OFF) is None
    manager.complete_load(second.token)
    assert store(manager, chain[1:]) == []
    assert manager.statistics().failed_loads == 1


def test_a_late_failure_does_not_drop_a_key_that_was_stored_anew() -> None:
    manager, chain = make_manager(4), make_chain("a", 1)
    store(manager, chain)
    first, second = (manager.prepare_load(chain, ONE_OFF) for _ in range(2))
    manager.complete_load(first.token, failed_keys=chain)
    store(manager, chain)
    manager.take_events()
    manager.complete_load(second.token, failed_keys=chain)
    assert resident(manager, chain) == chain
    assert manager.take_events() == []
    manager.check_integrity()


def test_failed_keys_of_another_transfer_are_refused_and_nothing_is_released() -> None:
    manager, chain = make_manager(), make_chain("a", 2)
    store(manager, chain)
    output = manager.prepare_load(chain[:1], ONE_OFF)
    with pytest.raises(ArgumentError, match="failed_keys must be keys of this transfer"):
        manager.complete_load(output.token, failed_keys=chain)
    assert manager.statistics().pools[0].pinned == 1
    manager.complete_load(output.token)
    manager.check_integrity()


# Requests


@pytest.mark.parametrize("repeat", ["touch", "load", "store"])
def test_one_request_is_one_use_however_often_it_comes_back(repeat: str) -> None:
    """Fault 24: with ARC, a key that one request uses again and again is not frequent."""
    manager, chain = make_manager(4, "arc"), make_chain("a", 2)
    ctx = begin(manager, "long")
    store(manager, chain, ctx)
    for _ in range(5):
        if repeat == "touch":
            manager.touch(chain, ctx)
        elif repeat == "load":
            load(manager, chain, ctx)
        else:
            store(manager, chain, ctx)
    manager.on_request_finished(ctx)
    assert "2 recent, 0 frequent" in repr(manager)
    load(manager, chain, begin(manager, "other"))
    assert "0 recent, 2 frequent" in repr(manager)


def test_a_repeated_use_by_one_request_does_not_make_a_key_recent() -> None:
    """Fault 24, with LRU."""
    manager, old, new = make_manager(4), make_chain("old", 2), make_chain("new", 2)
    ctx = begin(manager, "r")
    store(manager, old, ctx)
    store(manager, new)
    manager.touch(old, ctx)
    assert store(manager, make_chain("x", 2)) == old[::-1]


def test_a_use_by_a_request_that_was_not_begun_counts_each_time() -> None:
    manager, old, new = make_manager(4), make_chain("old", 2), make_chain("new", 2)
    store(manager, old)
    store(manager, new)
    manager.touch(old, ONE_OFF)
    assert store(manager, make_chain("x", 2)) == new[::-1]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_chain_stored_batch_by_batch_leaves_tail_first_once_its_request_is_finished(policy: str) -> None:
    manager, chain = make_manager(6, policy), make_chain("a", 6)
    ctx = begin(manager, "r")
    for start in (0, 2, 4):
        store(manager, chain[start : start + 2], ctx)
    manager.on_request_finished(ctx)
    assert store(manager, make_chain("b", 5)) == chain[:0:-1]


def test_the_order_holds_when_the_last_store_ends_after_its_request() -> None:
    manager, chain = make_manager(4), make_chain("a", 4)
    ctx = begin(manager, "r")
    store(manager, chain[:2], ctx)
    output = manager.prepare_store(chain[2:], ctx)
    manager.on_request_finished(ctx)
    assert output is not None
    assert manager.complete_store(output.token)
    assert store(manager, make_chain("b", 3)) == chain[:0:-1]


def test_a_request_is_begun_once_and_its_end_may_be_repeated() -> None:
    manager = make_manager()
    ctx = begin(manager, "r")
    with pytest.raises(ArgumentError, match="req_id 'r'"):
        manager.on_new_request(ctx)
    manager.on_request_finished(ctx)
    manager.on_request_finished(ctx)
    assert manager.statistics().requests == 0
    begin(manager, "r")


def test_a_request_that_is_begun_twice_keeps_what_it_had_used() -> None:
    manager, chain = make_manager(4), make_chain("a", 2)
    ctx = begin(manager, "r")
    store(manager, chain, ctx)
    with pytest.raises(ArgumentError, match="req_id 'r'"):
        manager.on_new_request(ctx)
    assert store(manager, make_chain("b", 3), ctx) == []
    assert resident(manager, chain) == chain


def test_the_end_of_a_request_that_was_not_begun_leaves_no_trace() -> None:
    manager = make_manager()
    manager.on_request_finished(ONE_OFF)
    manager.prepare_load(make_chain("a", 2), ONE_OFF)
    assert manager.statistics().requests == 0


@pytest.mark.parametrize("policy", UNCHOOSY)
def test_a_chain_touched_in_runs_leaves_tail_first_once_its_request_is_finished(policy: str) -> None:
    """The runs of a long touch are one use, in the order of one call."""
    for call_size in (1, 2, 3, 6):
        manager, chain = make_manager(6, policy), make_chain("a", 6)
        store(manager, chain[3:])
        store(manager, chain[:3])
        ctx = begin(manager, "r")
        for start in range(0, 6, call_size):
            manager.touch(chain[start : start + call_size], ctx)
        manager.on_request_finished(ctx)
        assert store(manager, make_chain("b", 5)) == chain[:0:-1]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_request_goes_on_after_a_reset(policy: str) -> None:
    """What it used before is stored anew, and protected from itself as before."""
    manager, chain = make_manager(4, policy), make_chain("a", 6)
    ctx = begin(manager, "r")
    store(manager, chain[:2], ctx)
    loading = manager.prepare_load(chain[:2], ctx)
    storing = manager.prepare_store(chain[2:4], ctx)
    assert storing is not None
    assert manager.reset_cache() == 2
    assert manager.complete_load(loading.token) is False
    assert manager.complete_store(storing.token) is False
    store(manager, chain[:3], ctx)
    store(manager, chain[3:], ctx)
    assert resident(manager, chain) == chain[:4]
    manager.on_request_finished(ctx)
    assert store(manager, make_chain("b", 3)) == chain[3:0:-1]


# The reuse filter


def test_a_key_is_stored_when_the_nth_request_offers_it() -> None:
    manager, chain = make_manager(store_threshold=3), make_chain("a", 2)
    for expected in ([], [], chain):
        output = manager.prepare_store(chain, ONE_OFF)
        assert output is not None
        assert list(output.keys_to_store) == expected
    assert manager.statistics().filtered == 4


def test_one_request_offers_a_key_once() -> None:
    manager, chain = make_manager(store_threshold=2), make_chain("a", 2)
    ctx = begin(manager, "r")
    manager.touch(chain, ctx)
    for _ in range(3):
        output = manager.prepare_store(chain, ctx)
        assert output is not None
        assert output.keys_to_store == ()
    assert store(manager, chain, begin(manager, "other")) == []
    assert resident(manager, chain) == chain


def test_a_chain_is_stored_up_to_its_first_key_that_is_not_due() -> None:
    manager, chain = make_manager(store_threshold=2), make_chain("a", 4)
    store(manager, chain[:1])
    store(manager, chain[2:])
    output = manager.prepare_store(chain, ONE_OFF)
    assert output is not None
    assert output.keys_to_store == chain[:1]


def test_the_tracker_is_bounded_and_an_offer_does_not_push_out_its_own_head() -> None:
    """I11."""
    manager, chain = make_manager(store_threshold=2, store_tracker_keys=3), make_chain("a", 10)
    store(manager, make_chain("b", 3))
    store(manager, chain)
    output = manager.prepare_store(chain, ONE_OFF)
    assert output is not None
    assert output.keys_to_store == chain[:3]
    assert manager._offers is not None
    assert len(manager._offers) == 3


# Groups and pools


def test_each_group_finds_its_own_pool_and_ids_stand_in_key_order() -> None:
    """Fault 46."""
    manager = make_hybrid(4, 2)
    keys = make_chain("a", 4, 0) + make_chain("a", 2, 1)
    output = manager.prepare_store(keys, ONE_OFF)
    assert output is not None
    assert output.keys_to_store == keys
    assert output.spec.chunk_ids.tolist() == [0, 1, 2, 3, 0, 1]  # type: ignore[attr-defined]
    manager.complete_store(output.token)
    assert manager.lookup_prefix(keys, ONE_OFF) == 6
    assert manager.lookup_groups([keys[:4], keys[4:]], ONE_OFF) == 4
    loaded = manager.prepare_load(keys[2:5], ONE_OFF)
    assert loaded.spec.chunk_ids.tolist() == [2, 3, 0]  # type: ignore[attr-defined]
    assert [event.keys for event in manager.take_events()] == [tuple(keys[:4]), tuple(keys[4:])]
    manager.check_integrity()


def test_a_store_that_one_pool_has_no_room_for_is_refused_by_all() -> None:
    """I6 over several pools: a position without one of its groups is of no use."""
    manager = make_hybrid(4, 1)
    store(manager, make_chain("a", 4, 0) + make_chain("a", 1, 1))
    pinned = manager.prepare_load(make_chain("a", 1, 1), ONE_OFF)
    manager.take_events()
    assert manager.prepare_store(make_chain("b", 2, 1) + make_chain("b", 1, 0), ONE_OFF) is None
    assert manager.take_events() == []
    assert len(resident(manager, make_chain("a", 4, 0))) == 4
    manager.complete_load(pinned.token)


def test_a_store_over_several_pools_is_cut_by_position() -> None:
    manager = make_hybrid(6, 1)
    output = manager.prepare_store(make_chain("a", 6, 0) + make_chain("a", 3, 1), ONE_OFF)
    assert output is not None
    assert list(output.keys_to_store) == make_chain("a", 2, 0) + make_chain("a", 1, 1)
    manager.complete_store(output.token)
    manager.check_integrity()


def test_tails_of_all_groups_leave_before_the_head_of_any() -> None:
    groups = [GroupConfig(), GroupConfig()]
    manager = CPUOffloadingManager([PoolShape((0, 1), 4096, 8)], groups=groups)
    first, second = make_chain("a", 4, 0), make_chain("a", 4, 1)
    store(manager, first + second)
    store(manager, make_chain("b", 2, 0) + make_chain("b", 2, 1))
    assert manager.lookup_groups([first, second], ONE_OFF) == 2


# Reset


def test_a_reset_drops_everything_at_once_and_says_so() -> None:
    manager, chain = make_manager(), make_chain("a", 3)
    store(manager, chain)
    manager.take_events()
    assert manager.reset_cache() == 3
    assert manager.take_events() == [OffloadingEvent(EventKind.CLEARED, (), "CPU", "cpu", RemovalReason.RESET)]
    assert manager.lookup_prefix(chain, ONE_OFF) == 0
    assert manager.statistics().pools[0].free == 8
    manager.check_integrity()


@pytest.mark.parametrize("policy", POLICIES)
def test_completions_of_an_old_epoch_change_nothing_but_their_own_quarantined_slots(policy: str) -> None:
    """Fault 53, I7."""
    manager, chain = make_manager(6, policy), make_chain("a", 4)
    store(manager, chain[:2])
    old_load = manager.prepare_load(chain[:2], ONE_OFF)
    old_store = manager.prepare_store(chain[2:], ONE_OFF)
    assert old_store is not None
    assert manager.reset_cache() == 2
    assert manager.statistics().pools[0].quarantined == 4
    new_store = manager.prepare_store(chain, ONE_OFF)
    assert new_store is not None
    assert new_store.keys_to_store == tuple(chain[:2]), "only two slots are not in quarantine"
    manager.take_events()
    for _ in range(2):
        assert not manager.complete_load(old_load.token, failed_keys=chain[:2])
        assert not manager.complete_store(old_store.token)
        manager.check_integrity()
    assert manager.take_events() == []
    assert manager.lookup(chain[0], ONE_OFF) is LookupResult.HIT_PENDING
    assert manager.lookup(chain[2], ONE_OFF) is LookupResult.MISS
    assert manager.statistics().pools[0].free == 4
    assert manager.complete_store(new_store.token)
    manager.check_integrity()


def test_what_a_reset_dropped_is_freed_little_by_little() -> None:
    """I10."""
    manager = make_manager(3000)
    store(manager, make_chain("a", 3000))
    manager.reset_cache()
    calls = 0
    while len(manager._discarded):
        manager.prepare_load([], ONE_OFF)
        calls += 1
    assert calls > 2 * 3000 / 300


# Events


def test_stored_and_removed_alternate_for_each_key() -> None:
    """I9, fault 49."""
    manager, chain = make_manager(2), make_chain("a", 2)
    store(manager, chain)
    store(manager, make_chain("b", 1))
    store(manager, chain)
    output = manager.prepare_load(chain, ONE_OFF)
    manager.complete_load(output.token, failed_keys=chain)
    seen = [
        (event.kind, event.reason)
        for event in manager.take_events()
        if chain[1] in event.keys and (event.medium, event.tier) == ("CPU", "cpu")
    ]
    assert seen == [
        (EventKind.STORED, None),
        (EventKind.REMOVED, RemovalReason.EVICTED),
        (EventKind.STORED, None),
        (EventKind.REMOVED, RemovalReason.FAILED),
    ]
    assert manager.take_events() == []


def test_a_key_is_told_as_stored_only_when_it_can_be_read() -> None:
    """Fault 49."""
    manager, chain = make_manager(), make_chain("a", 2)
    output = manager.prepare_store(chain, ONE_OFF)
    assert output is not None
    assert manager.take_events() == []
    manager.complete_store(output.token)
    assert manager.take_events() == [OffloadingEvent(EventKind.STORED, tuple(chain), "CPU", "cpu")]


def test_events_that_nobody_takes_are_bounded_and_their_loss_is_told_and_counted() -> None:
    """I9, I11: what was lost is not known, so what is resident must be asked for."""
    manager = make_manager(max_pending_events=3)
    for number in range(5):
        store(manager, make_chain(f"c{number}", 1))
    assert manager.statistics().dropped_events == 5
    assert manager.take_events() == [OffloadingEvent(EventKind.CLEARED, (), "CPU", "cpu", RemovalReason.LOST)]
    (part,) = manager.resident_keys()
    assert (part.medium, part.tier, len(part.keys)) == ("CPU", "cpu", 5)
    store(manager, make_chain("d", 1))
    assert [event.kind for event in manager.take_events()] == [EventKind.STORED]


# Figures and input


def test_slots_add_up_in_every_state() -> None:
    """Fault 51, I7."""
    manager, chain = make_manager(8), make_chain("a", 6)
    store(manager, chain[:4])
    manager.prepare_store(chain[4:], ONE_OFF)
    manager.prepare_load(chain[:2], ONE_OFF)
    second = manager.prepare_load(chain[2:3], ONE_OFF)
    manager.prepare_load(chain[2:3], ONE_OFF)
    manager.complete_load(second.token, failed_keys=chain[2:3])
    pool = manager.statistics().pools[0]
    assert (pool.free, pool.writing, pool.pinned, pool.evictable, pool.quarantined) == (2, 2, 2, 1, 1)
    assert pool.capacity == 8
    assert manager.statistics().loads_in_flight == 2
    assert manager.statistics().stores_in_flight == 1
    manager.check_integrity()


def test_keys_are_plain_bytes_whose_names_do_not_depend_on_the_process() -> None:
    """Fault 45: equal bytes are the same key, whichever object holds them."""
    manager, chain = make_manager(), make_chain("a", 2)
    store(manager, chain)
    assert manager.lookup_prefix([OffloadKey(bytes(bytearray(key))) for key in chain], ONE_OFF) == 2


BAD_KEYS = [
    ("text", r"key(s\[\d\])? must be bytes made by make_offload_key"),
    (None, r"key(s\[\d\])? must be bytes made by make_offload_key"),
    (7, r"key(s\[\d\])? must be bytes made by make_offload_key"),
    (bytearray(b"mutable"), r"key(s\[\d\])? must be bytes made by make_offload_key|keys must be a sequence of bytes"),
    (memoryview(make_offload_key(b"x", 0)), r"key(s\[\d\])? must be bytes made by make_offload_key"),
    (b"\0\0\0\0", r"key(s\[\d\])? must be bytes made by make_offload_key"),
    (b"", r"key(s\[\d\])? must be bytes made by make_offload_key"),
    (make_offload_key(b"x", 9), r"key(s\[\d\])? is of group 9, there are \d groups"),
]


@pytest.mark.parametrize("call", ["prepare_store", "prepare_load", "lookup_prefix", "touch", "lookup"])
def test_a_bad_key_is_refused_and_nothing_has_changed(call: str) -> None:
    for manager in (make_manager(), make_hybrid(8, 8)):
        chain = make_chain("a", 2)
        store(manager, chain[:1])
        before = manager.statistics()
        for bad_key, message in BAD_KEYS:
            argument = bad_key if call == "lookup" else [chain[0], bad_key, chain[1]]
            with pytest.raises(ArgumentError, match=message):
                getattr(manager, call)(argument, ONE_OFF)
            assert manager.statistics() == before, f"{call} of {bad_key!r}"
        manager.check_integrity()


@pytest.mark.parametrize("call", ["prepare_store", "prepare_load", "lookup_prefix", "touch"])
def test_what_is_no_sequence_of_keys_is_refused_by_name(call: str) -> None:
    for manager in (make_manager(), make_hybrid(8, 8)):
        for argument in (None, 7):
            with pytest.raises(ArgumentError, match="keys must be a sequence, got"):
                getattr(manager, call)(argument, ONE_OFF)
        manager.check_integrity()


@pytest.mark.parametrize("call", ["prepare_store", "prepare_load", "lookup_prefix", "touch"])
@pytest.mark.parametrize("kind", [set, frozenset])
def test_keys_without_an_order_are_refused(call: str, kind: type) -> None:
    """I5: a chunk would be kept under another one's key."""
    for manager in (make_manager(), make_hybrid(8, 8)):
        with pytest.raises(ArgumentError, match=f"keys must be a sequence, in order, got a {kind.__name__}"):
            getattr(manager, call)(kind(make_chain("a", 3)), ONE_OFF)


class Greedy(LRUPolicy):
    """Admits another number of keys than there are."""

    accepted = 0

    def admit(
        self, keys: Sequence[OffloadKey], room: int, protected: Set[OffloadKey], chain: int, *, may_decline: bool = True
    ) -> Admission | None:
        return Admission(self.accepted, (), ())


@pytest.mark.parametrize("accepted", [-1, 0, 4])
def test_a_policy_that_admits_what_there_is_not_is_told_on(monkeypatch: pytest.MonkeyPatch, accepted: int) -> None:
    """I6: with nothing admitted, victims would have left for nothing."""
    monkeypatch.setitem(BUILTIN["policies"], "greedy", f"{__name__}:Greedy")
    monkeypatch.setattr(Greedy, "accepted", accepted)
    manager = make_manager(policy="greedy")
    with pytest.raises(InternalError, match=f"LRUPolicy.* admitted {accepted} of 3 keys"):
        manager.prepare_store(make_chain("a", 3), ONE_OFF)
    manager.check_integrity()


class Unmakeable(LRUPolicy):
    """Fails when it is made."""

    def __init__(self, residents: Residents) -> None:
        raise ValueError(f"no {residents.capacity}")


def test_a_policy_that_cannot_be_made_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BUILTIN["policies"], "mine", f"{__name__}:Unmakeable")
    with pytest.raises(ConfigError, match=r"^policy 'mine' cannot be made: ValueError: no \d+$"):
        make_manager(policy="mine")


def test_lookup_groups_of_what_is_no_sequence_is_refused_by_name() -> None:
    manager = make_hybrid(2, 2)
    with pytest.raises(ArgumentError, match="keys_by_group must be a sequence, got None"):
        manager.lookup_groups(None, ONE_OFF)  # type: ignore[arg-type]
    bad: list[Any] = [[None, []], [[], None]]
    for keys_by_group in bad:
        with pytest.raises(ArgumentError, match="keys"):
            manager.lookup_groups(keys_by_group, ONE_OFF)


@pytest.mark.parametrize("call", ["lookup_groups", "lookup_prefix"])
def test_what_has_the_bytes_of_a_key_but_is_none_is_refused_by_name(call: str) -> None:
    chain: list[Any] = [*make_chain("a", 1), bytearray(make_chain("a", 2)[1])]
    for manager, chains in ((make_manager(), [chain]), (make_hybrid(8, 8), [chain, []])):
        store(manager, chain[:1])
        argument: Any = chains if call == "lookup_groups" else chain
        with pytest.raises(ArgumentError, match=r"keys\[1\] must be bytes made by make_offload_key"):
            getattr(manager, call)(argument, ONE_OFF)


@pytest.mark.parametrize("make_keys", [lambda keys: np.array(keys, dtype=object), tuple, deque, iter])
def test_keys_may_come_in_any_sequence_an_array_too(
    make_keys: Callable[[list[OffloadKey]], Sequence[OffloadKey]],
) -> None:
    """I7: the truth value of an array raises; what was pinned before that would stay pinned."""
    for manager in (make_manager(), make_hybrid(8, 8)):
        chain = make_chain("a", 3)
        ctx = begin(manager, "r")
        output = manager.prepare_store(make_keys(chain), ctx)
        assert output is not None
        manager.complete_store(output.token)
        manager.touch(make_keys(chain), ctx)
        assert manager.lookup_prefix(make_keys(chain), ctx) == 3
        loaded = manager.prepare_load(make_keys(chain), ctx)
        assert list(loaded.keys) == chain
        manager.complete_load(loaded.token, failed_keys=np.array([], dtype=object))
        assert manager.statistics().pools[0].pinned == 0
        manager.check_integrity()


@pytest.mark.parametrize("call", ["prepare_store", "prepare_load"])
def test_a_context_that_is_none_pins_and_reserves_nothing(call: str) -> None:
    """I7: nothing is pinned before what can raise."""
    manager, chain = make_manager(), make_chain("a", 2)
    store(manager, chain[:1])
    before = manager.statistics()
    with pytest.raises(AttributeError):
        getattr(manager, call)(chain, None)
    assert manager.statistics() == before
    manager.check_integrity()


@pytest.mark.parametrize("failed_keys", [[[]], [None, "text"], 7])
def test_failed_keys_that_are_no_keys_are_refused_and_the_pins_stay(failed_keys: Any) -> None:
    manager, chain = make_manager(), make_chain("a", 2)
    store(manager, chain)
    token = manager.prepare_load(chain, ONE_OFF).token
    with pytest.raises(ArgumentError, match="failed_keys must be keys of this transfer"):
        manager.complete_load(token, failed_keys=failed_keys)
    assert manager.statistics().pools[0].pinned == 2
    assert manager.complete_load(token)
    manager.check_integrity()


def test_a_key_offered_twice_in_one_store_is_refused() -> None:
    """Fault 48: no key gets two slots."""
    manager, chain = make_manager(), make_chain("a", 2)
    with pytest.raises(ArgumentError, match=r"keys must be distinct, got .* 2 times"):
        manager.prepare_store([*chain, chain[0]], ONE_OFF)
    assert manager.statistics().pools[0].free == 8


def test_a_key_named_twice_in_one_load_is_pinned_once() -> None:
    manager, chain = make_manager(), make_chain("a", 1)
    store(manager, chain)
    output = manager.prepare_load(chain * 2, ONE_OFF)
    assert output.spec.chunk_ids.tolist() == [0, 0]  # type: ignore[attr-defined]
    manager.complete_load(output.token)
    assert manager.statistics().pools[0].pinned == 0
    manager.check_integrity()


@pytest.mark.parametrize("call", ["prepare_store", "prepare_load", "touch"])
def test_no_keys_are_fine(call: str) -> None:
    """Fault 48: zero is legal."""
    manager = make_hybrid(2, 2)
    getattr(manager, call)([], ONE_OFF)
    assert manager.lookup_prefix([], ONE_OFF) == 0
    assert manager.lookup_groups([[], []], ONE_OFF) == 0
    manager.check_integrity()


def test_lookup_groups_wants_one_list_per_group() -> None:
    with pytest.raises(ArgumentError, match="one entry for each of 2 groups, got 1"):
        make_hybrid(2, 2).lookup_groups([[]], ONE_OFF)


def test_a_manager_that_cannot_work_is_refused() -> None:
    with pytest.raises(ConfigError, match="pools must serve each of 2 groups once"):
        CPUOffloadingManager([PoolShape((0,), 1, 1)], groups=[GroupConfig(), GroupConfig()])
    with pytest.raises(ConfigError, match="unknown name 'nonsense'"):
        make_manager(policy="nonsense")
    wrong: tuple[Any, ...] = (0, 1.5, True, "3")
    for threshold in wrong:
        with pytest.raises(ConfigError, match=f"store_threshold must be a whole number of .* 1, got {threshold!r}"):
            make_manager(store_threshold=threshold)


def test_the_repr_counts() -> None:
    assert "8 slots: 8 free" in repr(make_manager())
    assert repr(make_manager()).endswith("0 requests, 0 loads, 0 stores)")


@pytest.mark.parametrize("policy", POLICIES)
def test_long_chains_that_many_requests_store_at_once_keep_their_heads(policy: str) -> None:
    """Of a chain that came in runs between those of others, what is left is a head; a tail alone is of no use."""
    manager = CPUOffloadingManager([PoolShape((0,), 4096, 400)], groups=[GroupConfig()], policy=policy)
    chains = {begin(manager, name): make_chain(name, 200) for name in "abcdefgh"}
    for start in range(0, 200, 20):
        for ctx, chain in chains.items():
            store(manager, chain[start : start + 20], ctx)
    assert all(manager.lookup_prefix(chain, ONE_OFF) >= 20 for chain in chains.values())
    manager.check_integrity()


@pytest.mark.parametrize("policy", POLICIES)
def test_a_chain_stored_in_runs_leaves_tail_first_though_its_request_goes_on(policy: str) -> None:
    manager, chain, others = make_manager(9, policy), make_chain("a", 6), make_chain("other", 3)
    ctx = begin(manager, "r")
    for index in range(3):
        store(manager, others[index : index + 1])
        store(manager, chain[2 * index : 2 * index + 2], ctx)
    assert store(manager, make_chain("x", 3)) == others
    assert store(manager, make_chain("y", 5)) == chain[:0:-1]


def test_a_list_of_keys_may_be_used_again_after_the_call() -> None:
    """What a transfer holds is not the caller's list."""
    manager, chain = make_manager(4), make_chain("a", 4)
    keys = list(chain)
    output = manager.prepare_store(keys, ONE_OFF)
    keys.clear()
    assert output is not None
    assert manager.complete_store(output.token)
    assert [event.keys for event in manager.take_events()] == [tuple(chain)]
    keys = list(chain)
    load = manager.prepare_load(keys, ONE_OFF)
    keys.clear()
    assert manager.complete_load(load.token, failed_keys=chain[3:])
    assert manager.lookup_prefix(chain, ONE_OFF) == 3
    manager.check_integrity()


@pytest.mark.parametrize("num_groups", [1, 2])
@pytest.mark.parametrize("bad", [b"", b"abc", bytes(4), "abcdefghi", None, 5, [1]])
def test_a_big_tier_refuses_what_is_no_key_as_a_small_one_does(num_groups: int, bad: Any) -> None:
    """Its index looks into keys before anybody has looked at them."""
    pool = PoolShape(tuple(range(num_groups)), 4096, 20_000)
    manager = CPUOffloadingManager([pool], groups=[GroupConfig()] * num_groups)
    calls: list[Callable[[], object]] = [
        lambda: manager.lookup_prefix([bad], ONE_OFF),
        lambda: manager.prepare_load([bad], ONE_OFF),
        lambda: manager.prepare_store([bad], ONE_OFF),
        lambda: manager.lookup_groups([[bad]] * num_groups, ONE_OFF),
    ]
    for call in calls:
        with pytest.raises(ArgumentError, match="key"):
            call()
    manager.check_integrity()


def test_a_request_is_kept_account_of_without_giving_up_the_interpreter() -> None:
    """I10."""
    manager, names = make_manager(64), itertools.count()

    def serve() -> None:
        chain, ctx = make_chain(f"chain {next(names) % 7}", 26), ReqContext("begun")
        manager.on_new_request(ctx)
        manager.lookup_prefix(chain, ctx)
        manager.complete_load(manager.prepare_load(chain, ctx).token)
        store = manager.prepare_store(chain, ctx)
        assert store is not None
        manager.complete_store(store.token)
        manager.on_request_finished(ctx)
        manager.take_events()

    assert turns_given_away(serve, 1000) == 0
