"""Chains as runs of tuples, against plain lists."""

import functools
import gc
import random
from itertools import count

import numpy as np
import pytest

from aiokvoffload.base import OffloadKey
from aiokvoffload.cache.policies.runs import FEW, Chain, extended, from_tail, without, without_tail
from aiokvoffload.errors import InternalError
from aiokvoffload.testing.policy import make_keys

Plain = list[tuple[int, int]]
"""Slots and stamps, head first."""


@functools.cache
def key_of(slot: int) -> OffloadKey:
    return make_keys(slot)[0]


def grown(chain: Chain, slots: list[int], stamp: int) -> Chain:
    return extended(chain, slots, [key_of(slot) for slot in slots], stamp)


def plain_of(chain: Chain) -> Plain:
    """What is in a chain; each slot has its key."""
    items = list(from_tail(chain))[::-1]
    assert [key for _, key, _ in items] == [key_of(slot) for slot, _, _ in items]
    return [(slot, stamp) for slot, _, stamp in items]


@pytest.mark.parametrize("seed", range(10))
def test_a_chain_holds_what_a_list_would_whatever_is_cut_out_of_it(seed: int) -> None:
    chance, slots, chain, plain = random.Random(seed), count(), Chain(), Plain()  # noqa: S311 - no secret is made of it
    for _ in range(400):
        match chance.choice(("grow", "grow", "tail", "out")):
            case "grow":
                new, stamp = [next(slots) for _ in range(chance.choice((1, 20, 90, 300)))], chance.randrange(2)
                chain, plain = grown(chain, new, stamp), plain + [(slot, stamp) for slot in new]
            case "tail":
                number = chance.randint(0, 60)
                chain, keys, gone = without_tail(chain, number)
                plain, tail = plain[: max(0, len(plain) - number)], plain[max(0, len(plain) - number) :]
                assert gone == [slot for slot, _ in reversed(tail)]
                assert keys == [key_of(slot) for slot in gone]
            case _ if plain:
                first = chance.randrange(len(plain))
                leaving = tuple(slot for slot, _ in plain[first : first + chance.randint(1, 40)])
                done = 0
                while done < len(leaving):
                    chain, done = without(chain, leaving, done)
                del plain[first : first + len(leaving)]
        assert plain_of(chain) == plain


def test_what_is_gone_is_let_go_of_before_it_is_more_than_what_is_left() -> None:
    """I11: a chain whose tail leaves slowly does not keep the keys of all of it."""
    chain = grown((), list(range(1000)), 0)
    for _ in range(990):
        chain, _, _ = without_tail(chain, 1)
        assert sum(len(run[0]) for run in chain) <= 2 * len(plain_of(chain)) + 1


def test_the_collector_goes_through_no_long_run_nor_through_what_is_left_of_it_and_leaves_chains_alone() -> None:
    """I10: of a burst of long loads a young collection went through 300,000 slots and keys, 6 ms."""
    slots = list(range(1000))
    whole = grown((), slots, 0)
    slots.clear()
    third, _, _ = without_tail(whole, 700)
    cut, _ = without(third, tuple(range(100, 200)), 0)
    grown_on = grown(cut, list(range(2000, 2000 + FEW)), 0)
    for chain in (whole, third, cut, grown_on):
        for run in chain:
            assert [isinstance(each, np.ndarray) for each in run[:2]] == [len(run[0]) > FEW] * 2
    for _ in range(3):  # once for each depth of tuples, at most
        gc.collect()
    assert not any(map(gc.is_tracked, (whole, third, cut, grown_on)))
    assert [slot for slot, _ in plain_of(grown_on)] == [*range(100), *range(200, 300), *range(2000, 2000 + FEW)]


def test_a_chain_that_grows_key_by_key_has_few_runs() -> None:
    chain = Chain()
    for slot in range(1000):
        chain = grown(chain, [slot], 0)
    assert len(chain) < 1000 / 16
    assert plain_of(chain) == [(slot, 0) for slot in range(1000)]


def test_runs_of_different_times_stay_apart() -> None:
    assert plain_of(grown(grown((), [1], 5), [2], 6)) == [(1, 5), (2, 6)]


def test_a_slot_that_is_not_here_cannot_be_taken_out() -> None:
    chain, _, _ = without_tail(grown((), [1, 2, 3], 0), 1)
    with pytest.raises(InternalError, match="slot 3"):
        without(chain, (3,), 0)
