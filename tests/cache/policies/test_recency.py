"""The recency list: one order, however it is read."""

import gc
import random
from collections.abc import Iterable, Sequence, Set
from itertools import count

import numpy as np
import pytest

from aiokvoffload.base import OffloadKey
from aiokvoffload.cache.policies.recency import RecencyList
from aiokvoffload.cache.policies.runs import FEW
from aiokvoffload.testing.policy import PlainResidents, make_keys


def keys_in(slots: Iterable[int]) -> set[OffloadKey]:
    """The key that goes with each slot in these tests."""
    return set(make_keys(*slots))


def add(recency: RecencyList, slots: Sequence[int], chain: int) -> None:
    recency.add(make_keys(*slots), slots, chain)


def touch(recency: RecencyList, slots: Sequence[int], chain: int) -> None:
    """Move slots that are here to the end of a chain, which becomes the most recent one, even for no slots."""
    recency.remove(slots)
    recency.renew(chain)
    add(recency, slots, chain)


def evict(recency: RecencyList, count: int, protected: Iterable[int], chain: int) -> list[int]:
    """The slots that leave, with their keys."""
    keys, slots = recency.evict(count, keys_in(protected), chain)
    assert keys == make_keys(*slots)
    return slots


def test_what_was_set_aside_for_one_chain_is_first_to_leave_for_another() -> None:
    """Else a policy that asks who is first would find nobody, and refuse a chain for which there is room."""
    recency = RecencyList(PlainResidents(4))
    add(recency, [0, 1], 1)
    assert recency.evict_oldest(1, keys_in([0, 1]), 2) == ([], [])
    assert recency.oldest_stamp(2) is None
    assert recency.oldest_stamp(3) == 0
    assert recency.evict_oldest(1, frozenset(), 3) == (make_keys(1), [1])


class PlainList:
    """What a `RecencyList` promises, in the plainest form: lists, the oldest chain in front, in each the head."""

    def __init__(self) -> None:
        self.chains: list[tuple[int, list[int]]] = []

    @property
    def slots(self) -> list[int]:
        """All, the first to leave in front."""
        return [slot for _, slots in self.chains for slot in reversed(slots)]

    def add(self, slots: list[int], chain: int) -> None:
        """Move them, or add them, to the end of the chain, and the chain to the end of all."""
        self.remove(slots)
        own = [slot for number, old in self.chains if number == chain for slot in old]
        others = [(number, old) for number, old in self.chains if number != chain]
        self.chains = [*others, (chain, own + slots)]
        self.remove([])

    def touch(self, slots: list[int], chain: int) -> None:
        """The same for those that are here."""
        self.add([slot for slot in slots if slot in self.slots], chain)

    def remove(self, slots: list[int]) -> None:
        kept = [(number, [slot for slot in old if slot not in slots]) for number, old in self.chains]
        self.chains = [(number, old) for number, old in kept if old]

    def evict(self, count: int, spared: Set[int]) -> list[int]:
        """Take the first to leave that may go."""
        victims = [slot for slot in self.slots if slot not in spared][:count]
        self.remove(victims)
        return victims

    def of(self, chain: int) -> set[int]:
        """The slots of a chain."""
        return {slot for number, slots in self.chains if number == chain for slot in slots}


def add_absent(recency: RecencyList, plain: PlainList, some: list[int], chain: int) -> None:
    """Add to both those of the slots that are not there yet."""
    if new := [slot for slot in some if slot not in plain.slots]:
        add(recency, new, chain)
        plain.add(new, chain)


def make_list(*chains: list[int]) -> RecencyList:
    recency = RecencyList(PlainResidents(64))
    for chain, slots in enumerate(chains):
        add(recency, slots, chain)
    return recency


@pytest.mark.parametrize("num_chains", [1, 4, 1000])
@pytest.mark.parametrize("seed", range(5))
def test_victims_are_those_of_a_plain_list_whatever_happens_between_evictions(seed: int, num_chains: int) -> None:
    chance = random.Random(seed)  # noqa: S311 - no secret is made of it
    recency, plain, one_offs = RecencyList(PlainResidents(400)), PlainList(), count(num_chains)
    for _ in range(600):
        some, chain = chance.sample(range(400), chance.randint(1, 20)), chance.randrange(num_chains)
        here = [slot for slot in some if slot in plain.slots]
        match chance.choice(("add", "add", "touch", "renew", "remove", "evict", "evict")):
            case "add":
                add_absent(recency, plain, some, chain)
            case "touch":
                touch(recency, here, chain)
                plain.touch(here, chain)
            case "renew":
                touch(recency, (), chain)
                plain.touch([], chain)
            case "remove":
                recency.remove(here[:3])
                plain.remove(here[:3])
            case _:
                protected, asking = set(some), next(one_offs)
                assert evict(recency, len(some), protected, asking) == plain.evict(len(some), protected)
        assert list(recency.residents()) == plain.slots
        assert len(recency) == len(plain.slots)


@pytest.mark.parametrize("num_chains", [2, 5, 1000])
@pytest.mark.parametrize("seed", range(10))
def test_victims_are_those_of_a_plain_list_whoever_asks_and_whatever_is_held(seed: int, num_chains: int) -> None:
    """Requests whose protected slots only grow ask in turn; slots are held and released in between."""
    chance = random.Random(seed)  # noqa: S311 - no secret is made of it
    residents = PlainResidents(200)
    recency, plain, held = RecencyList(residents), PlainList(), residents.held
    protected_by: dict[int, set[int]] = {}
    first_chain = 0
    for _ in range(600):
        some, chain = chance.sample(range(200), chance.randint(1, 20)), first_chain + chance.randrange(num_chains)
        protected = protected_by.setdefault(chain, set())
        here = [slot for slot in some if slot in plain.slots]
        match chance.choice(4 * ("add", "touch", "remove", "hold", "release", "count", "evict", "evict") + ("end",)):
            case "add":
                add_absent(recency, plain, some, chain)
            case "touch":
                protected.update(here)
                touch(recency, here, chain)
                plain.touch(here, chain)
            case "remove":
                recency.remove(here[:2])
                plain.remove(here[:2])
                held.difference_update(here[:2])
            case "hold":
                held.update(here[:4])
            case "release":
                gone = chance.sample(sorted(held), len(held) // 2)
                held.difference_update(gone)
                recency.release(gone)
            case "end":
                first_chain += num_chains
            case "count":
                protected |= plain.of(chain)
                expected = min(9, len(set(plain.slots) - protected - held))
                assert recency.count_victims(9, keys_in(protected), chain) == expected
            case "evict":
                protected |= plain.of(chain)
                expected_victims = plain.evict(len(some), protected | held)
                assert evict(recency, len(some), protected, chain) == expected_victims
        assert list(recency.residents()) == plain.slots


def test_a_chain_used_after_an_eviction_began_with_it_is_no_victim() -> None:
    slots = list(range(64))
    recency = make_list(slots[:32], slots[32:])
    assert evict(recency, 1, set(), 2) == [31]
    touch(recency, slots[:31], 0)
    assert evict(recency, 2, set(), 2) == [63, 62]
    assert list(recency.residents())[-1] == 0


def test_a_slot_removed_and_added_again_is_as_young_as_its_return() -> None:
    recency = make_list(list(range(64)))
    evict(recency, 1, set(), 2)
    recency.remove([0])
    add(recency, [0], 1)
    assert evict(recency, 63, set(), 2) == [*range(62, 0, -1), 0]


def test_a_slot_set_aside_leaves_before_its_head_once_it_is_released() -> None:
    residents = PlainResidents(8)
    recency = RecencyList(residents)
    add(recency, range(8), 0)
    residents.held.update((6, 7))
    assert evict(recency, 2, set(), 1) == [5, 4]
    residents.held.clear()
    recency.release((6, 7))
    assert evict(recency, 3, set(), 1) == [7, 6, 3]


def test_protected_slots_keep_their_place_at_the_tail() -> None:
    recency = make_list(list(range(8)))
    assert evict(recency, 8, range(5, 8), 1) == [4, 3, 2, 1, 0]
    assert evict(recency, 8, set(), 2) == [7, 6, 5]


def test_slots_of_a_moved_tail_leave_no_trace_in_their_old_chain() -> None:
    recency = make_list([0, 1, 2, 3], [4, 5])
    touch(recency, [2, 3], 2)
    assert list(recency.residents()) == [1, 0, 5, 4, 3, 2]
    touch(recency, [0, 1], 2)
    assert "6 slots in 2 chains" in repr(recency)


def test_long_chains_are_kept_where_the_garbage_collector_does_not_go_through_them() -> None:
    """I10: nor does it come back to them, as it would to objects of a class."""
    recency = RecencyList(PlainResidents(4 * FEW))
    add(recency, range(FEW + 1), 0)
    add(recency, range(FEW + 1, 3 * FEW), 0)
    for _ in range(3):
        gc.collect()
    chains = list(recency.chains.values())
    runs = [run for chain in chains for run in chain]
    assert [isinstance(each, np.ndarray) for run in runs for each in run[:2]] == [True] * 4
    assert not any(map(gc.is_tracked, (*chains, *runs)))
    assert evict(recency, 2 * FEW, (), 1) == list(reversed(range(FEW, 3 * FEW)))


@pytest.mark.parametrize("slots", [range(FEW), range(10 * FEW)])
def test_the_slots_behind_one_are_told_with_their_keys_wherever_it_stands(slots: range) -> None:
    recency = RecencyList(PlainResidents(len(slots)))
    add(recency, slots, 0)
    for slot in (0, 1, len(slots) - 2, len(slots) - 1):
        keys, behind = recency.rest_of_run(slot)
        assert (behind, list(keys)) == (tuple(slots[slot + 1 :]), make_keys(*slots[slot + 1 :]))
