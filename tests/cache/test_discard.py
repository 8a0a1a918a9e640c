"""Containers that nobody reads any more go little by little, however much is in them."""

import pytest

from aiokvoffload.cache.discard import DiscardPile
from aiokvoffload.cache.policies.runs import FEW, extended
from aiokvoffload.testing.policy import make_keys


def test_what_lies_inside_a_container_is_emptied_little_by_little_as_well() -> None:
    """I10: one entry may be a dictionary of a million."""
    pile, inner = DiscardPile(), dict.fromkeys(range(100))
    pile.add({0: inner, 1: {}})
    pile.shed(12)
    assert len(inner) == 90
    assert len(pile) == 90
    pile.shed(89)
    assert len(pile) == 1
    pile.shed(1)
    pile.shed(1)
    assert not pile.containers


@pytest.mark.parametrize("length", [FEW, FEW + 1, 4096])
def test_a_chain_counts_as_what_is_in_it(length: int) -> None:
    """I10: a chain of thousands of keys is one entry, and not freed as quickly as a number."""
    pile, slots = DiscardPile(), range(length)
    keys = make_keys(*slots)
    pile.add({number: extended((), slots, keys, 0) for number in range(5)})
    pile.shed(1)
    assert len(pile) == 4
    pile.shed(2 * (2 * length + 1))
    assert len(pile) == 2
