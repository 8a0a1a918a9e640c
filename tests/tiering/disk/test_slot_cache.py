"""Slots outlive their keys: what was evicted is free again only when its row is gone."""

from collections.abc import Sequence, Set

import pytest

from aiokvoffload.base import Admission, OffloadKey
from aiokvoffload.cache.making import policy_maker
from aiokvoffload.cache.policies.lru import LRUPolicy
from aiokvoffload.cache.pool import Held
from aiokvoffload.errors import InternalError
from aiokvoffload.registry import BUILTIN
from aiokvoffload.testing.tier import tier_keys
from aiokvoffload.tiering.disk.rows import ChainRun
from aiokvoffload.tiering.disk.slot_cache import Reserved, SlotCache


def store(cache: SlotCache, *numbers: int, chain: int) -> Reserved:
    reserved = cache.reserve(tier_keys(*numbers), frozenset(tier_keys(*numbers)), chain)
    assert reserved is not None
    cache.complete_write(reserved.held)
    return reserved


def test_a_store_is_given_slots_that_are_free_and_not_those_that_it_empties() -> None:
    cache = SlotCache(4, LRUPolicy)
    store(cache, 1, 2, 3, chain=0)
    reserved = store(cache, 4, chain=1)
    assert reserved.evicted == tier_keys(3)
    assert reserved.held.slots == [3]
    assert reserved.retiring.slots == [2]
    assert (cache.pool.free.count, cache.retiring_count) == (0, 1)
    cache.check_integrity([], [])
    cache.free(reserved.retiring.slots)
    assert (cache.pool.free.count, cache.retiring_count) == (1, 0)
    cache.check_integrity([], [])


def test_a_slot_whose_row_is_gone_is_free_only_when_nobody_reads_it_any_more() -> None:
    cache = SlotCache(4, LRUPolicy)
    store(cache, 1, 2, chain=0)
    one, other = cache.pool.pin_leading(tier_keys(1)), cache.pool.pin_leading(tier_keys(1))
    lost = cache.forget(one, set(tier_keys(1)))
    cache.complete_read(one)
    assert cache.forget(other, set(tier_keys(1))) == Held((), ())
    cache.free(lost.slots)
    assert cache.pool.free.count == 2
    cache.complete_read(other)
    assert cache.pool.free.count == 3
    cache.check_integrity([], [])


def test_no_more_is_reserved_than_is_free() -> None:
    cache = SlotCache(8, LRUPolicy)
    store(cache, *range(7), chain=0)
    assert len(store(cache, *range(10, 15), chain=1).held.keys) == 1


def test_unread_slots_count_as_taken_until_they_are_adopted_or_given_up() -> None:
    cache = SlotCache(8, LRUPolicy)
    cache.hold_unread([1, 2, 5])
    assert cache.pool.free.count == 5
    cache.adopt(ChainRun(0, 0, tier_keys(1, 2), [5, 1], [b"a" * 16, b"b" * 16]), 0)
    assert cache.checksums([1, 5]) == [b"b" * 16, b"a" * 16]
    assert cache.pool.index.get(tier_keys(1)[0]) == 5
    assert cache.retire_unread(10) == [2]
    cache.check_integrity([], [])
    cache.free([2])
    assert cache.pool.free.count == 6
    cache.check_integrity([], [])


def test_of_a_run_only_what_is_absent_and_in_an_unread_slot_is_adopted() -> None:
    """I4: a key may have been stored anew meanwhile, and a damaged index may name a slot or a key twice."""
    cache = SlotCache(40, LRUPolicy)
    cache.hold_unread([1, 2, 3, 4])
    store(cache, 7, chain=0)
    keys, slots = tier_keys(5, 7, 6, 6, 8, 9), [1, 2, 3, 4, 1, 30]
    run = ChainRun(0, 0, keys, slots, [bytes([number] * 16) for number in range(6)])
    assert cache.adopt(run, 1) == tier_keys(8, 6)
    assert cache.checksums([1, 4]) == [bytes([4] * 16), bytes([3] * 16)]
    assert cache.unread_count == 2
    cache.check_integrity([], [])


def run_of(*numbers: int, slots: Sequence[int]) -> ChainRun:
    return ChainRun(0, 0, tier_keys(*numbers), slots, [bytes(16)] * len(numbers))


@pytest.mark.parametrize("policy", BUILTIN["policies"])
def test_what_is_adopted_leaves_in_the_order_in_which_it_was_stored(policy: str) -> None:
    cache = SlotCache(32, policy_maker(policy))
    cache.hold_unread(range(8))
    store(cache, 20, 21, 22, chain=0)  # as many as are adopted at a time: what is known of one is not the other's
    cache.adopt(run_of(1, 2, 3, slots=(0, 1, 2)), 1)
    cache.adopt(run_of(4, slots=(3,)), 1)
    cache.adopt(run_of(11, 12, 13, slots=(4, 5, 6)), 2)
    cache.check_integrity([], [])
    assert cache.first_to_leave(10) == tier_keys(22, 21, 20, 4, 3, 2, 1, 13, 12, 11)


@pytest.mark.parametrize("accepted", [0, 1])
def test_a_policy_that_declines_what_a_restart_found_leaves_pool_and_order_in_step(accepted: int) -> None:
    class Reluctant(LRUPolicy):
        def admit(
            self,
            keys: Sequence[OffloadKey],
            room: int,
            protected: Set[OffloadKey],
            chain: int,
            *,
            may_decline: bool = True,
        ) -> Admission | None:
            return Admission(accepted, (), ()) if accepted else None

    cache = SlotCache(8, Reluctant)
    cache.hold_unread([1, 2])
    with pytest.raises(InternalError, match="declined"):
        cache.adopt(run_of(1, 2, slots=(1, 2)), 0)
    assert cache.unread_count == 2
    cache.check_integrity([], [])
