"""The manager, driven at random, against sets and dictionaries that say what must be true."""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, rule

from aiokvoffload.base import EventKind, LookupResult, OffloadKey, ReqContext, make_offload_key
from aiokvoffload.config import GroupConfig
from aiokvoffload.cpu.common import PoolShape
from aiokvoffload.cpu.manager import CPUOffloadingManager

GROUPS = (GroupConfig(), GroupConfig(span=2), GroupConfig(window_chunks=2))
POOLS = (PoolShape((0, 2), 4096, 7), PoolShape((1,), 8192, 3))
POOL_OF_GROUP = (0, 1, 0)
CHAINS, LENGTH = 3, 6

Slot = tuple[int, int]
"""Pool and slot."""

prefixes = st.tuples(st.integers(0, CHAINS - 1), st.integers(0, 3), st.integers(1, LENGTH))
requests = st.sampled_from(["r1", "r2", "not begun"])


def make_keys(prefix: tuple[int, int, int]) -> list[OffloadKey]:
    """The keys of all groups of one piece of a chain, group after group."""
    chain, start, stop = prefix
    return [
        make_offload_key(b"%d/%d" % (chain, number), group_idx)
        for group_idx, group in enumerate(GROUPS)
        for number in range(start // group.span, stop // group.span)
    ]


def group_of(key: OffloadKey) -> int:
    return key[-1]


UNIVERSE = sorted({key for chain in range(CHAINS) for key in make_keys((chain, 0, LENGTH))})


class ManagerModel(RuleBasedStateMachine):
    """Two pools, three groups, requests that come and go, transfers that end in any order, failures and resets."""

    policy = "lru"
    stores = Bundle("stores")
    loads = Bundle("loads")

    def __init__(self) -> None:
        super().__init__()
        self.manager = CPUOffloadingManager(POOLS, groups=GROUPS, policy=self.policy)
        self.requests: set[str] = set()
        self.readable: dict[OffloadKey, Slot] = {}
        self.writing: dict[OffloadKey, Slot] = {}
        self.told: set[OffloadKey] = set()
        self.open_stores: dict[int, dict[OffloadKey, Slot]] = {}
        self.open_loads: dict[int, dict[OffloadKey, Slot]] = {}
        self.issued_tokens: set[int] = set()
        self.past_tokens: set[int] = set()

    def slots_by_key(self, keys: Any, spec: Any) -> dict[OffloadKey, Slot]:
        pools = [POOL_OF_GROUP[group_of(key)] for key in keys]
        return dict(zip(keys, zip(pools, spec.chunk_ids.tolist(), strict=True), strict=True))

    def held_slots(self) -> set[Slot]:
        transfers = [*self.open_stores.values(), *self.open_loads.values()]
        return {slot for transfer in transfers for slot in transfer.values()}

    @rule(name=requests)
    def begin_or_finish(self, name: str) -> None:
        if name in self.requests:
            self.requests.remove(name)
            self.manager.on_request_finished(ReqContext(name))
        elif name != "not begun":
            self.requests.add(name)
            self.manager.on_new_request(ReqContext(name))

    @rule(prefix=prefixes, name=requests)
    def touch(self, prefix: tuple[int, int, int], name: str) -> None:
        self.manager.touch(make_keys(prefix), ReqContext(name))

    @rule(target=stores, prefix=prefixes, name=requests)
    def prepare_store(self, prefix: tuple[int, int, int], name: str) -> Any:
        keys = make_keys(prefix)
        absent = [key for key in keys if key not in self.readable and key not in self.writing]
        held = self.held_slots()
        output = self.manager.prepare_store(keys, ReqContext(name))
        if output is None:
            assert absent
            return multiple()
        assert list(output.keys_to_store) == [key for key in absent if key in set(output.keys_to_store)]
        for victim in output.evicted_keys:
            slot = self.readable.pop(victim)
            assert slot not in held, "a held key was evicted (I3)"
            assert victim not in keys, "a store evicted its own chain"
        reserved = self.slots_by_key(output.keys_to_store, output.spec)
        assert len(set(reserved.values())) == len(reserved)
        assert not set(reserved.values()) & (held | set(self.readable.values())), "a slot was handed out twice"
        self.writing |= reserved
        self.open_stores[output.token] = reserved
        self.issued_tokens.add(output.token)
        return output.token

    @rule(token=stores, failures=st.sets(st.integers(0, 20), max_size=2))
    def complete_store(self, token: int, failures: set[int]) -> None:
        reserved = self.open_stores.pop(token, {})
        failed = [key for index, key in enumerate(reserved) if index in failures]
        assert self.manager.complete_store(token, failed) is (token not in self.past_tokens)
        if token not in self.past_tokens:
            for key, slot in reserved.items():
                del self.writing[key]
                if key not in failed:
                    self.readable[key] = slot

    @rule(target=loads, prefix=prefixes, name=requests)
    def prepare_load(self, prefix: tuple[int, int, int], name: str) -> int:
        keys = make_keys(prefix)
        output = self.manager.prepare_load(keys, ReqContext(name))
        count = next((index for index, key in enumerate(keys) if key not in self.readable), len(keys))
        assert list(output.keys) == keys[:count]
        pinned = self.slots_by_key(output.keys, output.spec)
        assert pinned == {key: self.readable[key] for key in output.keys}
        self.open_loads[output.token] = pinned
        self.issued_tokens.add(output.token)
        return output.token

    @rule(token=loads, failures=st.sets(st.integers(0, 20), max_size=2))
    def complete_load(self, token: int, failures: set[int]) -> None:
        pinned = self.open_loads.pop(token, {})
        failed = [key for index, key in enumerate(pinned) if index in failures]
        assert self.manager.complete_load(token, failed) is (token not in self.past_tokens)
        if token not in self.past_tokens:
            for key in failed:
                if self.readable.get(key) == pinned[key]:
                    del self.readable[key]

    @rule()
    def reset(self) -> None:
        assert self.manager.reset_cache() == len(self.readable)
        self.readable.clear()
        self.writing.clear()
        self.past_tokens |= self.issued_tokens

    @invariant()
    def the_manager_agrees(self) -> None:
        self.manager.check_integrity()
        for key in UNIVERSE:
            expected = LookupResult.HIT if key in self.readable else LookupResult.MISS
            expected = LookupResult.HIT_PENDING if key in self.writing else expected
            assert self.manager.lookup(key, ReqContext("not begun")) is expected

    @invariant()
    def slots_add_up(self) -> None:
        """I7, fault 51."""
        held = self.held_slots()
        current = set(self.readable.values()) | set(self.writing.values())
        for index, pool in enumerate(self.manager.statistics().pools):
            assert pool.writing == sum(slot[0] == index for slot in self.writing.values())
            assert pool.pinned == sum(slot[0] == index for slot in set(self.readable.values()) & held)
            assert pool.quarantined == sum(slot[0] == index for slot in held - current)
            assert pool.evictable == sum(slot[0] == index for slot in set(self.readable.values()) - held)

    @invariant()
    def events_tell_the_truth(self) -> None:
        """I9."""
        for event in self.manager.take_events():
            match event.kind:
                case EventKind.STORED:
                    assert not self.told & set(event.keys)
                    self.told.update(event.keys)
                case EventKind.REMOVED:
                    assert self.told >= set(event.keys)
                    self.told.difference_update(event.keys)
                case EventKind.CLEARED:
                    self.told.clear()
            assert len({group_of(key) for key in event.keys}) <= 1
        assert self.told == self.readable.keys()


class ARCManagerModel(ManagerModel):
    policy = "arc"


class S3FIFOManagerModel(ManagerModel):
    policy = "s3fifo"


class SIEVEManagerModel(ManagerModel):
    policy = "sieve"


class LFUManagerModel(ManagerModel):
    policy = "lfu"


class AdaptiveManagerModel(ManagerModel):
    """GAP is the same as long as it rules, and on small traces it does."""

    policy = "adaptive"


MODELS = (ManagerModel, ARCManagerModel, S3FIFOManagerModel, SIEVEManagerModel, LFUManagerModel, AdaptiveManagerModel)
for model in MODELS:
    model.TestCase.settings = settings(max_examples=25, stateful_step_count=30)
TestLRU = ManagerModel.TestCase
TestARC = ARCManagerModel.TestCase
TestS3FIFO = S3FIFOManagerModel.TestCase
TestSIEVE = SIEVEManagerModel.TestCase
TestLFU = LFUManagerModel.TestCase
TestAdaptive = AdaptiveManagerModel.TestCase
