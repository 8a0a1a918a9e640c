"""What the manager of CPU memory offers to tiers below: pins, promotions, quarantine, and who leaves next."""

import pytest

from aiokvoffload.base import LookupResult, ReqContext
from aiokvoffload.errors import ArgumentError
from tests.cpu.test_manager import make_chain, make_hybrid, make_manager, store

CTX = ReqContext("request")


def test_a_pin_counts_no_use_and_forbids_eviction() -> None:
    manager = make_manager(num_slots=4)
    old, young = make_chain("old", 2), make_chain("young", 2)
    store(manager, old)
    store(manager, young)
    pinned = manager.pin(old)
    assert list(pinned.keys) == old
    assert store(manager, make_chain("new", 2)) == young[::-1]
    manager.complete_load(pinned.token)
    assert store(manager, make_chain("newer", 1)) == old[1:]
    assert manager.statistics().loaded == 0
    manager.check_integrity()


def test_a_promotion_does_not_ask_whether_a_key_is_worth_storing() -> None:
    manager = make_manager(store_threshold=3)
    keys = make_chain("chain", 3)
    output = manager.prepare_promotion(keys, CTX)
    assert output is not None
    assert list(output.keys_to_store) == keys
    assert manager.lookup(keys[0], CTX) is LookupResult.HIT_PENDING
    assert manager.complete_store(output.token)
    assert manager.lookup_prefix(keys, CTX) == 3


@pytest.mark.parametrize("policy", ["gap", "adaptive"])
def test_a_promotion_is_never_declined_for_its_worth_and_a_store_only_where_it_may_be(policy: str) -> None:
    """What is used again and again fills the pool; a new chain would be of no use, but somebody waits for it."""
    manager = make_manager(num_slots=32, policy=policy)
    popular = make_chain("popular", 32)
    store(manager, popular)
    for number in range(200):
        manager.touch(popular, ReqContext(f"regular {number}"))
    assert manager.prepare_store(make_chain("new", 4), CTX) is None
    promoted = manager.prepare_promotion(make_chain("new", 4), CTX)
    assert promoted is not None
    assert list(promoted.keys_to_store) == make_chain("new", 4)
    assert list(promoted.evicted_keys) == popular[:-5:-1]
    manager.complete_store(promoted.token)
    stored = manager.prepare_store(make_chain("newer", 8), CTX, may_decline=False)
    assert stored is not None
    assert len(stored.keys_to_store) == 8
    manager.complete_store(stored.token)
    manager.check_integrity()


def test_a_promotion_of_what_is_here_reserves_nothing() -> None:
    manager = make_manager()
    keys = make_chain("chain", 3)
    store(manager, keys)
    output = manager.prepare_promotion(keys, CTX)
    assert output is not None
    assert (list(output.keys_to_store), list(output.evicted_keys)) == ([], [])


def test_a_quarantined_store_is_a_miss_and_its_slots_are_nobodys_until_it_ends() -> None:
    """Fault 25, I7."""
    manager = make_manager(num_slots=2)
    keys = make_chain("chain", 2)
    output = manager.prepare_store(keys, CTX)
    assert output is not None
    for _ in range(2):  # repeating it does nothing
        manager.quarantine_store(output.token)
        assert manager.lookup_prefix(keys, CTX) == 0
        assert manager.statistics().pools[0].quarantined == 2
        manager.check_integrity()
    assert manager.prepare_store(keys, CTX) is None
    assert not manager.complete_store(output.token)
    assert (manager.statistics().pools[0].free, manager.take_events()) == (2, [])
    store(manager, keys)


def test_a_quarantined_store_may_outlast_a_reset() -> None:
    """Fault 53."""
    manager = make_manager(num_slots=2)
    output = manager.prepare_store(make_chain("chain", 2), CTX)
    assert output is not None
    manager.quarantine_store(output.token)
    manager.reset_cache()
    manager.quarantine_store(output.token)
    manager.check_integrity()
    assert not manager.complete_store(output.token)
    assert manager.statistics().pools[0].free == 2


@pytest.mark.parametrize("policy", ["lru", "arc"])
def test_who_leaves_next_is_told_before_they_do(policy: str) -> None:
    manager = make_manager(num_slots=6, policy=policy)
    for name in ("a", "b", "c"):
        store(manager, make_chain(name, 2))
    expected = list(manager.first_to_leave(3))
    assert store(manager, make_chain("new", 3)) == expected
    manager.check_integrity()


def test_every_group_has_slots_of_its_own_pool() -> None:
    manager = make_hybrid(full_slots=4, window_slots=2)
    output = manager.prepare_promotion(make_chain("window", 1, group_idx=1), CTX)
    assert output is not None
    assert (manager.slots_for(0).free, manager.slots_for(1).free) == (4, 1)
    manager.quarantine_store(output.token)
    assert manager.slots_for(1).quarantined == 1
    assert not manager.complete_store(output.token)
    store(manager, make_chain("window", 2, group_idx=1))
    assert len(manager.first_to_leave(8)) == 2
    manager.check_integrity()


def test_a_pin_of_what_is_no_key_is_refused() -> None:
    with pytest.raises(ArgumentError):
        make_manager().pin([b"short"])  # type: ignore[list-item]
