import pytest

from aiokvoffload.cache.slot_readers import SlotReaders
from aiokvoffload.errors import InternalError


def test_a_slot_is_read_until_its_last_reader_has_ended() -> None:
    readers = SlotReaders()
    readers.add([1, 2])
    readers.add([2, 3, 3])
    assert (readers.counts(), len(readers), set(readers)) == ({1: 1, 2: 2, 3: 2}, 3, {1, 2, 3})
    assert readers.remove([1, 2, 3]) == [1]
    assert readers.remove([2, 3]) == [2, 3]
    assert (len(readers), repr(readers)) == (0, "SlotReaders(0 slots are read)")


def test_which_slots_are_read_can_be_asked() -> None:
    readers = SlotReaders()
    assert readers.isdisjoint([1])
    readers.add([1, 4])
    assert (readers.isdisjoint([2, 3]), readers.isdisjoint([3, 4])) == (True, False)
    assert readers.among([3, 4, 5]) == {4}


@pytest.mark.parametrize("slots", [[1, 7], [1, 1]])
def test_a_read_that_is_not_under_way_cannot_end_and_changes_nothing(slots: list[int]) -> None:
    """Fault 16."""
    readers = SlotReaders()
    readers.add([1, 2])
    before = readers.counts()
    with pytest.raises(InternalError, match="is unpinned but not pinned"):
        readers.remove(slots)
    assert readers.counts() == before


def test_a_read_that_holds_a_slot_twice_ends_once_for_each() -> None:
    readers = SlotReaders()
    readers.add([1, 2])
    readers.add([2, 2, 3])
    assert readers.remove([2, 2, 3]) == [3]
    assert readers.counts() == {1: 1, 2: 1}
