import pytest

from aiokvoffload.errors import InternalError
from aiokvoffload.tiering.budget import SlotBudget


def test_groups_that_share_a_pool_share_its_bound() -> None:
    budget = SlotBudget([4, 2], {0: 0, 1: 0, 2: 1})
    budget.take(0, 3)
    budget.take(2, 2)
    assert [budget.left(group_idx) for group_idx in range(3)] == [1, 1, 0]
    budget.give(1, 3)
    assert (budget.left(0), budget.used) == (4, 2)


def test_what_was_not_taken_cannot_be_given_back() -> None:
    """Fault 16."""
    with pytest.raises(InternalError, match="1 slots of pool 0 are given back that were not taken"):
        SlotBudget([4], {0: 0}).give(0, 1)
