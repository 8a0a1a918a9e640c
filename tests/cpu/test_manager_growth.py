"""The manager while its pools grow under stores and loads (I7)."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from aiokvoffload.base import OffloadKey, ReqContext, make_offload_key
from aiokvoffload.config import GroupConfig
from aiokvoffload.cpu.common import PoolShape
from aiokvoffload.cpu.manager import CPUOffloadingManager
from aiokvoffload.errors import ArgumentError
from aiokvoffload.registry import BUILTIN

POLICIES = tuple(BUILTIN["policies"])

CTX = ReqContext("r")
GROUPS = (GroupConfig(), GroupConfig())


def chain(start: int, count: int, group_idx: int = 0) -> list[OffloadKey]:
    return [make_offload_key(f"{number:05}".encode(), group_idx) for number in range(start, start + count)]


def make_manager(*num_slots: int, policy: str = "lru") -> CPUOffloadingManager:
    pools = [PoolShape((index,), 4096, slots) for index, slots in enumerate(num_slots)]
    return CPUOffloadingManager(pools, groups=GROUPS[: len(pools)], policy=policy, grows=True)


def store(manager: CPUOffloadingManager, keys: list[OffloadKey]) -> list[int]:
    """Slots the keys were stored in."""
    prepared = manager.prepare_store(keys, CTX)
    if prepared is None:
        return []
    manager.complete_store(prepared.token)
    slots: list[int] = prepared.spec.chunk_ids.tolist()  # type: ignore[attr-defined]
    return slots


@pytest.mark.parametrize("policy", POLICIES)
def test_a_store_gets_the_slots_that_there_are_and_more_once_there_are_more(policy: str) -> None:
    """Fault 38."""
    manager = make_manager(8, policy=policy)
    assert manager.prepare_store(chain(0, 2), CTX) is None
    manager.grow((3,))
    assert store(manager, chain(0, 5)) == [0, 1, 2]
    manager.grow((8,), ended=True)
    assert store(manager, chain(3, 5)) == [3, 4, 5, 6, 7]
    assert manager.lookup_prefix(chain(0, 9), CTX) == 8
    assert manager.statistics().evicted == 0
    manager.check_integrity()


def test_statistics_say_what_is_still_to_come() -> None:
    manager = make_manager(4, 6)
    manager.grow((1, 2))
    assert [(pool.capacity, pool.growing) for pool in manager.statistics().pools] == [(1, 3), (2, 4)]
    manager.grow((2, 2), ended=True)
    assert [(pool.capacity, pool.growing) for pool in manager.statistics().pools] == [(2, 0), (2, 0)]


def test_a_growth_names_every_pool() -> None:
    with pytest.raises(ArgumentError, match=r"one number for each of 2 pools, got \(1,\)"):
        make_manager(4, 6).grow((1,))


class GrowingManager(RuleBasedStateMachine):
    """Any order of growth, stores, loads and resets keeps every slot in one state."""

    def __init__(self) -> None:
        super().__init__()
        self.manager = make_manager(24, policy="arc")
        self.ready = 0
        self.loads: list[int] = []
        self.stores: list[int] = []

    @rule(more=st.integers(0, 8), ended=st.sampled_from([False, False, False, True]))
    def grow(self, more: int, ended: bool) -> None:
        self.ready = min(24, self.ready + more)
        self.manager.grow((self.ready,), ended=ended)

    @rule(start=st.integers(0, 40), count=st.integers(1, 12))
    def prepare_store(self, start: int, count: int) -> None:
        prepared = self.manager.prepare_store(chain(start, count), CTX)
        if prepared is not None:
            assert max(prepared.spec.chunk_ids, default=-1) < self.ready  # type: ignore[attr-defined]
            self.stores.append(prepared.token)

    @rule(start=st.integers(0, 40), count=st.integers(1, 12))
    def prepare_load(self, start: int, count: int) -> None:
        self.loads.append(self.manager.prepare_load(chain(start, count), CTX).token)

    @rule(index=st.integers(0, 5))
    def complete(self, index: int) -> None:
        if self.stores:
            self.manager.complete_store(self.stores.pop(index % len(self.stores)))
        if self.loads:
            self.manager.complete_load(self.loads.pop(index % len(self.loads)))

    @rule()
    def reset(self) -> None:
        self.manager.reset_cache()

    @invariant()
    def slots_add_up(self) -> None:
        self.manager.check_integrity()
        (pool,) = self.manager.statistics().pools
        assert pool.capacity + pool.growing <= 24


TestGrowingManager = GrowingManager.TestCase
TestGrowingManager.settings = settings(max_examples=40, stateful_step_count=30)
