"""The recency list: one order, however it is read."""

import random
from collections.abc import Set

import pytest

from aiokvoffload.base import OffloadKey
from aiokvoffload.cache.policies.recency import RecencyList
from aiokvoffload.testing.policy import make_keys


class PlainList:
    """What a `RecencyList` promises, in the plainest form: lists, the oldest chain in front, in each the head."""

    def __init__(self) -> None:
        self.chains: list[tuple[int, list[OffloadKey]]] = []

    @property
    def keys(self) -> list[OffloadKey]:
        """All, the first to leave in front."""
        return [key for _, keys in self.chains for key in reversed(keys)]

    def add(self, keys: list[OffloadKey], chain: int) -> None:
        """Move them, or add them, to the end of the chain, and the chain to the end of all."""
        self.remove(keys)
        own = [key for number, old in self.chains if number == chain for key in old]
        others = [(number, old) for number, old in self.chains if number != chain]
        self.chains = [*others, (chain, own + keys)]
        self.remove([])

    def touch(self, keys: list[OffloadKey], chain: int) -> None:
        """The same for those that are here."""
        self.add([key for key in keys if key in self.keys], chain)

    def remove(self, keys: list[OffloadKey]) -> None:
        kept = [(number, [key for key in old if key not in keys]) for number, old in self.chains]
        self.chains = [(number, old) for number, old in kept if old]

    def evict(self, count: int, spared: Set[OffloadKey]) -> list[OffloadKey]:
        """Take the first to leave that may go."""
        victims = [key for key in self.keys if key not in spared][:count]
        self.remove(victims)
        return victims

    def of(self, chain: int) -> set[OffloadKey]:
        """The keys of a chain."""
        return {key for number, keys in self.chains if number == chain for key in keys}


def add_absent(recency: RecencyList, plain: PlainList, some: list[OffloadKey], chain: int) -> None:
    """Add to both those of the keys that are not there yet."""
    if new := [key for key in some if key not in plain.keys]:
        recency.add(new, chain)
        plain.add(new, chain)


def make_list(*chains: list[OffloadKey]) -> RecencyList:
    recency = RecencyList(set())
    for chain, keys in enumerate(chains):
        recency.add(keys, chain)
    return recency


@pytest.mark.parametrize("num_chains", [1, 4, 1000])
@pytest.mark.parametrize("seed", range(5))
def test_victims_are_those_of_a_plain_list_whatever_happens_between_evictions(seed: int, num_chains: int) -> None:
    chance = random.Random(seed)  # noqa: S311 - no secret is made of it
    recency, plain = RecencyList(set()), PlainList()
    names = make_keys(*range(400))
    for _ in range(600):
        some, chain = chance.sample(names, chance.randint(1, 20)), chance.randrange(num_chains)
        match chance.choice(("add", "add", "touch", "renew", "remove", "evict", "evict")):
            case "add":
                add_absent(recency, plain, some, chain)
            case "touch":
                recency.touch(some, chain)
                plain.touch(some, chain)
            case "renew":
                recency.renew(chain)
                plain.touch([], chain)
            case "remove":
                assert recency.remove(some[:3]) == [key for key in some[:3] if key in plain.keys]
                plain.remove(some[:3])
            case _:
                protected = set(some) | plain.of(chain)
                assert recency.evict(len(some), protected, chain) == plain.evict(len(some), protected)
        assert list(recency) == plain.keys
        assert len(recency) == len(plain.keys)


@pytest.mark.parametrize("num_chains", [2, 5, 1000])
@pytest.mark.parametrize("seed", range(10))
def test_victims_are_those_of_a_plain_list_whoever_asks_and_whatever_is_pinned(seed: int, num_chains: int) -> None:
    """Two requests, whose protected keys only grow, ask in turn; keys are pinned and unpinned in between."""
    chance = random.Random(seed)  # noqa: S311 - no secret is made of it
    pinned: set[OffloadKey] = set()
    recency, plain = RecencyList(pinned), PlainList()
    requests: tuple[set[OffloadKey], set[OffloadKey]] = (set(), set())
    names = make_keys(*range(200))
    for _ in range(600):
        some, chain = chance.sample(names, chance.randint(1, 20)), chance.randrange(num_chains)
        protected = chance.choice(requests)
        match chance.choice(4 * ("add", "touch", "remove", "pin", "unpin", "count", "evict", "evict") + ("end",)):
            case "add":
                add_absent(recency, plain, some, chain)
            case "touch":
                protected.update(some)
                recency.touch(some, chain)
                plain.touch(some, chain)
            case "remove":
                recency.remove(some[:2])
                plain.remove(some[:2])
                pinned.difference_update(some[:2])
            case "pin":
                pinned.update(set(some[:4]) & set(plain.keys))
            case "unpin":
                gone = chance.sample(sorted(pinned), len(pinned) // 2)
                pinned.difference_update(gone)
                recency.unpin(gone)
            case "end":
                requests = (set(), requests[0])
            case "count":
                protected |= plain.of(chain)
                spared = protected | pinned
                expected = min(9, len(set(plain.keys) - spared))
                assert recency.count_victims(9, protected, chain) == expected
            case "evict":
                protected |= plain.of(chain)
                assert recency.evict(len(some), protected, chain) == plain.evict(len(some), protected | pinned)
        assert list(recency) == plain.keys


def test_a_chain_used_after_an_eviction_began_with_it_is_no_victim() -> None:
    keys = make_keys(*range(64))
    recency = make_list(keys[:32], keys[32:])
    assert recency.evict(1, set(), 2) == [keys[31]]
    recency.touch(keys[:31], 0)
    assert recency.evict(2, set(), 2) == [keys[63], keys[62]]
    assert list(recency)[-1] == keys[0]


def test_a_key_removed_and_added_again_is_as_young_as_its_return() -> None:
    keys = make_keys(*range(64))
    recency = make_list(keys)
    recency.evict(1, set(), 2)
    recency.remove(keys[:1])
    recency.add(keys[:1], 1)
    assert recency.evict(63, set(), 2) == [*keys[62:0:-1], keys[0]]


def test_a_key_set_aside_leaves_before_its_head_once_it_is_unpinned() -> None:
    pinned: set[OffloadKey] = set()
    recency = RecencyList(pinned)
    keys = make_keys(*range(8))
    recency.add(keys, 0)
    pinned.update(keys[6:])
    assert recency.evict(2, set(), 1) == [keys[5], keys[4]]
    pinned.clear()
    recency.unpin(keys[6:])
    assert recency.evict(3, set(), 1) == [keys[7], keys[6], keys[3]]


def test_protected_keys_keep_their_place_at_the_tail() -> None:
    keys = make_keys(*range(8))
    recency = make_list(keys)
    assert recency.evict(8, set(keys[5:]), 1) == keys[4::-1]
    assert recency.evict(8, (), 1) == keys[:4:-1]


def test_keys_of_a_moved_tail_leave_no_trace_in_their_old_chain() -> None:
    keys = make_keys(*range(6))
    recency = make_list(keys[:4], keys[4:])
    recency.touch(keys[2:4], 2)
    assert list(recency) == [keys[1], keys[0], keys[5], keys[4], keys[3], keys[2]]
    recency.touch(keys[:2], 2)
    assert "6 keys in 2 chains" in repr(recency)
