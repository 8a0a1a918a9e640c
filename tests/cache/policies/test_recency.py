"""The recency list: one order, however it is read."""

import random

import pytest

from aiokvoffload.base import OffloadKey
from aiokvoffload.cache.policies.recency import RecencyList
from aiokvoffload.testing.policy import make_keys


class PlainList:
    """What a `RecencyList` promises, in the plainest form: a list, the oldest key in front."""

    def __init__(self) -> None:
        self.keys: list[OffloadKey] = []

    def touch(self, keys: list[OffloadKey]) -> None:
        """Move those that are here to the end, the first of them last."""
        here = [key for key in keys if key in self.keys]
        self.keys = [key for key in self.keys if key not in here] + here[::-1]

    def evict(self, count: int, spared: set[OffloadKey]) -> list[OffloadKey]:
        """Take the oldest that may go."""
        victims = [key for key in self.keys if key not in spared][:count]
        self.keys = [key for key in self.keys if key not in victims]
        return victims


@pytest.mark.parametrize("seed", range(5))
def test_victims_are_those_of_a_plain_list_whatever_happens_between_evictions(seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 - no secret is made of it
    recency, plain = RecencyList(set()), PlainList()
    names = make_keys(*range(400))
    for _ in range(600):
        some = chance.sample(names, chance.randint(1, 20))
        match chance.choice(("add", "add", "touch", "remove", "evict", "evict")):
            case "add":
                new = [key for key in some if key not in plain.keys]
                recency.add(new)
                plain.keys += new[::-1]
            case "touch":
                recency.touch(some)
                plain.touch(some)
            case "remove":
                assert recency.remove(some[:3]) == [key for key in some[:3] if key in plain.keys]
                plain.keys = [key for key in plain.keys if key not in some[:3]]
            case _:
                assert recency.evict(len(some), set(some)) == plain.evict(len(some), set(some))
        assert list(recency) == plain.keys


def test_a_key_used_after_the_front_was_read_is_no_victim() -> None:
    recency = RecencyList(set())
    keys = make_keys(*range(64))
    recency.add(keys[::-1])
    assert recency.evict(1, set()) == keys[:1]
    recency.touch(keys[1:2])
    assert recency.evict(2, set()) == keys[2:4]
    assert list(recency)[-1] == keys[1]


def test_a_key_removed_and_added_again_is_as_young_as_its_return() -> None:
    recency = RecencyList(set())
    keys = make_keys(*range(64))
    recency.add(keys[::-1])
    recency.evict(1, set())
    recency.remove(keys[1:2])
    recency.add(keys[1:2])
    assert recency.evict(63, set()) == [*keys[2:], keys[1]]


def test_a_key_set_aside_leaves_before_all_others_once_it_is_unpinned() -> None:
    pinned: set[OffloadKey] = set()
    recency = RecencyList(pinned)
    keys = make_keys(*range(8))
    recency.add(keys[::-1])
    pinned.update(keys[:2])
    assert recency.evict(2, set()) == keys[2:4]
    pinned.clear()
    recency.unpin(keys[:2])
    assert recency.evict(3, set()) == [*keys[:2], keys[4]]


def test_protected_keys_keep_their_place_at_the_front() -> None:
    recency = RecencyList(set())
    keys = make_keys(*range(8))
    recency.add(keys[::-1])
    assert recency.evict(8, set(keys[:3])) == keys[3:]
    assert recency.evict(8, ()) == keys[:3]


@pytest.mark.parametrize("seed", range(20))
def test_victims_are_those_of_a_plain_list_whoever_asks_and_whatever_is_pinned(seed: int) -> None:
    """Two requests, whose protected keys only grow, ask in turn; keys are pinned and unpinned in between."""
    chance = random.Random(seed)  # noqa: S311 - no secret is made of it
    pinned: set[OffloadKey] = set()
    recency, plain = RecencyList(pinned), PlainList()
    requests: tuple[set[OffloadKey], set[OffloadKey]] = (set(), set())
    names = make_keys(*range(200))
    for _ in range(600):
        some = chance.sample(names, chance.randint(1, 20))
        protected = chance.choice(requests)
        match chance.choice(("add", "add", "touch", "pin", "unpin", "use", "count", "evict", "evict", "finish")):
            case "add":
                new = [key for key in some if key not in plain.keys]
                recency.add(new)
                plain.keys += new[::-1]
            case "touch":
                recency.touch(some)
                plain.touch(some)
            case "pin":
                pinned.update(key for key in some[:4] if key in plain.keys)
            case "unpin":
                gone = chance.sample(sorted(pinned), len(pinned) // 2)
                pinned.difference_update(gone)
                recency.unpin(gone)
            case "use":
                protected.update(some)
            case "finish" if chance.random() < 0.2:
                requests = (set(), requests[0])
            case "count":
                spared = protected | pinned
                assert recency.count_victims(9, protected) == min(9, sum(key not in spared for key in plain.keys))
                assert sorted(recency) == sorted(plain.keys)
                plain.keys = list(recency)  # Keys set aside are older than the victims that did not leave after all.
            case "evict":
                assert recency.evict(len(some), protected) == plain.evict(len(some), protected | pinned)
        assert list(recency) == plain.keys
