"""Slots outlive their keys: what was evicted is free again only when its row is gone."""

from aiokvoffload.cache.policies.lru import LRUPolicy
from aiokvoffload.cache.pool import Held
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
