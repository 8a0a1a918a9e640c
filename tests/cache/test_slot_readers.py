import pytest

from aiokvoffload.cache.slot_readers import SlotReaders
from aiokvoffload.errors import InternalError

FEW: list[int] = []
MANY = list(range(100, 200))
"""Slots that one more read holds; of many, all counts are taken out at once."""


def test_a_slot_is_read_until_its_last_reader_has_ended() -> None:
    readers = SlotReaders()
    readers.add([1, 2])
    readers.add([2, 3, 3])
    assert readers.counts == {1: 1, 2: 2, 3: 2}
    assert readers.remove([1, 2, 3]) == [1]
    assert readers.remove([2, 3]) == [2, 3]
    assert (readers.counts, repr(readers)) == ({}, "SlotReaders(0 slots are read)")


@pytest.mark.parametrize("others", [FEW, MANY])
def test_a_slot_that_others_read_is_not_among_those_that_nobody_reads(others: list[int]) -> None:
    readers = SlotReaders()
    readers.add([1, 2, *others])
    readers.add([2, 3, *others])
    assert readers.remove([1, 2, *others]) == [1]
    assert readers.remove([2, 3, *others]) == [2, 3, *others]
    assert readers.counts == {}


@pytest.mark.parametrize("others", [FEW, MANY])
@pytest.mark.parametrize(("slots", "foreign"), [([1, 2, 7], 7), ([1, 2, 1], 1), ([2, 2, 2], 2)])
def test_a_read_that_is_not_under_way_cannot_end_and_changes_nothing(
    slots: list[int], foreign: int, others: list[int]
) -> None:
    """Fault 16."""
    readers = SlotReaders()
    readers.add([1, 2, 2, *others])
    before = dict(readers.counts)
    with pytest.raises(InternalError, match=f"slot {foreign} is unpinned but not pinned"):
        readers.remove([*others, *slots])
    assert readers.counts == before


@pytest.mark.parametrize("others", [FEW, MANY])
def test_a_read_that_holds_a_slot_twice_ends_once_for_each(others: list[int]) -> None:
    readers = SlotReaders()
    readers.add([1, 2])
    readers.add([2, 2, 3, *others])
    assert readers.remove([2, 2, 3, *others]) == [3, *others]
    assert readers.counts == {1: 1, 2: 1}
