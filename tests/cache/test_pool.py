import pytest

from aiokvoffload.base import OffloadKey
from aiokvoffload.cache.free_runs import runs_of
from aiokvoffload.cache.pool import ChunkPool, Held
from aiokvoffload.errors import ArgumentError, InternalError
from aiokvoffload.testing.policy import make_keys


def store(pool: ChunkPool, keys: list[OffloadKey]) -> Held:
    held = pool.reserve(keys)
    pool.end_write(held)
    return held


def drop(pool: ChunkPool, keys: list[OffloadKey]) -> None:
    pool.drop(keys, [slot for slot in pool.index.find(keys) if slot is not None])


def states(pool: ChunkPool) -> tuple[int, ...]:
    now = pool.statistics()
    assert now.free + now.writing + now.pinned + now.evictable + now.quarantined == now.capacity
    return now.free, now.writing, now.pinned, now.evictable, now.quarantined


def test_a_slot_passes_through_its_states_and_they_add_up() -> None:
    """I7."""
    pool = ChunkPool(4)
    keys = make_keys(1, 2)
    assert states(pool) == (4, 0, 0, 0, 0)
    write = pool.reserve(keys)
    assert states(pool) == (2, 2, 0, 0, 0)
    pool.check_integrity([], [write])
    pool.end_write(write)
    assert states(pool) == (2, 0, 0, 2, 0)
    read = pool.pin_leading(keys[:1])
    assert (read.slots, read.keys) == ((0,), keys[:1])
    assert states(pool) == (2, 0, 1, 1, 0)
    drop(pool, keys[:1])
    assert states(pool) == (2, 0, 0, 1, 1)
    pool.check_integrity([read], [])
    pool.unpin(read)
    assert states(pool) == (3, 0, 0, 1, 0)
    pool.check_integrity([], [])


def test_a_chain_gets_adjacent_increasing_slots() -> None:
    pool = ChunkPool(100)
    store(pool, make_keys(*range(30)))
    held = store(pool, make_keys(*range(30, 60)))
    assert list(runs_of(held.slots)) == [(30, 60)]
    assert held.keys == make_keys(*range(30, 60))


def test_evicted_slots_are_reused_in_increasing_order() -> None:
    pool = ChunkPool(8)
    keys = make_keys(*range(8))
    store(pool, keys)
    held = pool.replace(make_keys(10, 11, 12), [keys[5], keys[4], keys[3]], [5, 4, 3])
    assert held.slots == [3, 4, 5]
    pool.check_integrity([], [held])


def test_a_chain_gets_increasing_slots_even_out_of_several_runs() -> None:
    pool = ChunkPool(12)
    store(pool, make_keys(*range(12)))
    drop(pool, make_keys(9, 10, 2, 4, 5))
    assert pool.reserve(make_keys(*range(20, 25))).slots == [2, 4, 5, 9, 10]


def test_pins_are_counted() -> None:
    pool = ChunkPool(2)
    keys = make_keys(1, 2)
    store(pool, keys)
    first = pool.pin_leading(keys)
    second = pool.pin_leading(keys[:1])
    pool.unpin(first)
    assert states(pool) == (0, 0, 1, 1, 0)
    assert not pool.are_free([0, 1])
    pool.unpin(second)
    assert states(pool) == (0, 0, 0, 2, 0)
    assert pool.are_free([0, 1])


def test_a_key_named_twice_in_one_call_is_held_twice() -> None:
    pool = ChunkPool(2)
    store(pool, make_keys(1))
    held = pool.pin_leading(make_keys(1, 1))
    assert held.slots == (0, 0)
    pool.check_integrity([held], [])
    pool.unpin(held)
    pool.check_integrity([], [])


def test_a_pin_released_twice_is_an_underflow() -> None:
    """Fault 16."""
    pool = ChunkPool(2)
    store(pool, make_keys(1))
    held = pool.pin_leading(make_keys(1))
    pool.unpin(held)
    with pytest.raises(InternalError, match="slot 0 is unpinned but not pinned"):
        pool.unpin(held)
    with pytest.raises(InternalError, match="some of which nobody writes"):
        pool.end_write(held)


def test_only_readable_leading_keys_are_pinned() -> None:
    """I4: a key that is being written is not readable."""
    pool = ChunkPool(4)
    store(pool, make_keys(1, 3))
    pool.reserve(make_keys(2))
    assert pool.pin_leading(make_keys(1, 2, 3)).slots == (0,)


def test_a_dropped_key_that_is_being_written_leaves_its_slot_quarantined_until_the_write_ends() -> None:
    pool = ChunkPool(2)
    old = pool.reserve(make_keys(1))
    drop(pool, make_keys(1))
    new = pool.reserve(make_keys(1))
    assert not set(old.slots) & set(new.slots)
    assert states(pool) == (0, 1, 0, 0, 1)
    pool.end_write(old)
    assert states(pool) == (1, 1, 0, 0, 0)
    pool.check_integrity([], [new])


def test_retired_slots_are_held_even_if_nobody_reads_them_and_are_free_with_the_last_hold() -> None:
    """I7: a slot whose key is gone waits for whoever retired it, and for who read it before."""
    pool = ChunkPool(4)
    store(pool, make_keys(1, 2, 3))
    read = pool.pin_leading(make_keys(1))
    retired = pool.retire(make_keys(1, 2), [0, 1])
    assert (retired.slots, states(pool)) == ([0, 1], (1, 0, 0, 1, 2))
    pool.check_integrity([read, retired], [])
    pool.unpin(retired)
    assert states(pool) == (2, 0, 0, 1, 1)
    pool.unpin(read)
    assert states(pool) == (3, 0, 0, 1, 0)
    with pytest.raises(InternalError, match="another slot or none"):
        pool.retire(make_keys(3), [1])


def test_a_clear_quarantines_what_is_held_and_frees_the_rest() -> None:
    """Fault 53."""
    pool = ChunkPool(8)
    keys = make_keys(*range(5))
    store(pool, keys)
    read = pool.pin_leading(keys[:2])
    write = pool.reserve(make_keys(10))
    (cleared,) = pool.clear()
    assert cleared.keys() == {*keys, *make_keys(10)}
    assert states(pool) == (5, 0, 0, 0, 3)
    new = pool.reserve(make_keys(*range(5)))
    assert not set(new.slots) & {*read.slots, *write.slots}
    pool.unpin(read)
    pool.end_write(write)
    assert states(pool) == (3, 5, 0, 0, 0)
    pool.check_integrity([], [new])


@pytest.mark.parametrize(
    ("evicted", "slots"),
    [(make_keys(1, 1), [0, 0]), (make_keys(7), [3]), (make_keys(2), [1]), (make_keys(1), [3])],
    ids=["twice", "absent", "held", "another slot"],
)
def test_a_policy_that_evicts_what_it_must_not_is_found_out(evicted: list[OffloadKey], slots: list[int]) -> None:
    pool = ChunkPool(4)
    store(pool, make_keys(1, 2))
    pool.pin_leading(make_keys(1, 2))
    pool.unpin(Held([0], make_keys(1)))
    with pytest.raises(InternalError, match="is evicted"):
        pool.replace(make_keys(3, 4), evicted, slots)


def test_more_keys_than_slots_are_refused_before_anything_changes() -> None:
    pool = ChunkPool(2)
    with pytest.raises(InternalError, match="3 keys need 1 slots more"):
        pool.reserve(make_keys(1, 2, 3))
    pool.check_integrity([], [])


def test_the_integrity_check_finds_a_lost_slot() -> None:
    pool = ChunkPool(4)
    store(pool, make_keys(1, 2))
    pool.index.remove(make_keys(1))
    with pytest.raises(InternalError, match="each slot once"):
        pool.check_integrity([], [])


def test_the_integrity_check_finds_a_pin_that_no_load_holds() -> None:
    pool = ChunkPool(4)
    store(pool, make_keys(1, 2))
    pool.pin_leading(make_keys(1))
    with pytest.raises(InternalError, match="read by others"):
        pool.check_integrity([], [])


def test_a_pool_has_at_least_one_slot() -> None:
    with pytest.raises(ArgumentError, match="num_slots must be at least 1, got 0"):
        ChunkPool(0)


def test_the_repr_counts_slots() -> None:
    assert repr(ChunkPool(3)) == "ChunkPool(3 slots: 3 free, 0 writing, 0 pinned, 0 evictable, 0 quarantined)"


def test_a_pool_grows_around_what_is_in_it() -> None:
    """I7: slots that are still to come are no part of the capacity."""
    pool = ChunkPool(10, grows=True)
    assert (states(pool), pool.statistics().growing) == ((0, 0, 0, 0, 0), 10)
    pool.grow(3, ended=False)
    keys = make_keys(1, 2, 3)
    write = pool.reserve(keys)
    pool.grow(7, ended=False)
    assert (states(pool), pool.statistics().growing) == ((4, 3, 0, 0, 0), 3)
    pool.check_integrity([], [write])
    pool.end_write(write)
    assert list(runs_of(store(pool, make_keys(4, 5, 6, 7)).slots)) == [(3, 7)]
    pool.grow(10, ended=True)
    assert (states(pool), pool.statistics().growing) == ((3, 0, 0, 7, 0), 0)
    pool.check_integrity([], [])


def test_a_pool_never_shrinks_and_never_has_more_than_was_planned() -> None:
    pool = ChunkPool(4, grows=True)
    pool.grow(3, ended=False)
    pool.grow(2, ended=False)
    assert pool.statistics().capacity == 3
    pool.grow(9, ended=False)
    assert (pool.statistics().capacity, pool.statistics().growing) == (4, 0)
    whole = ChunkPool(4)
    whole.grow(2, ended=True)
    assert whole.statistics().capacity == 4


def test_a_growth_that_ends_early_leaves_a_smaller_pool() -> None:
    pool = ChunkPool(8, grows=True)
    pool.grow(5, ended=True)
    pool.grow(8, ended=True)
    assert (pool.statistics().capacity, pool.statistics().growing) == (5, 0)


def test_a_pool_that_is_cleared_while_it_grows_has_the_slots_that_there_are() -> None:
    pool = ChunkPool(6, grows=True)
    pool.grow(4, ended=False)
    write = pool.reserve(make_keys(1))
    pool.clear()
    assert states(pool) == (3, 0, 0, 0, 1)
    pool.grow(6, ended=True)
    assert states(pool) == (5, 0, 0, 0, 1)
    pool.check_integrity([], [write])
    pool.end_write(write)
    assert list(runs_of(store(pool, make_keys(*range(10, 16))).slots)) == [(0, 6)]
