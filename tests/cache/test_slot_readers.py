import pytest

from aiokvoffload.cache.slot_readers import SlotReaders
from aiokvoffload.errors import InternalError


def test_a_slot_is_read_until_its_last_reader_has_ended() -> None:
    readers = SlotReaders()
    readers.add([1, 2])
    readers.add([2, 3, 3])
    assert readers.counts == {1: 1, 2: 2, 3: 2}
    assert readers.remove([1, 2, 3]) == [1]
    assert readers.remove([2, 3]) == [2, 3]
    assert (readers.counts, repr(readers)) == ({}, "SlotReaders(0 slots are read)")


@pytest.mark.parametrize("slots", [[1, 7], [1, 1]])
def test_a_read_that_is_not_under_way_cannot_end_and_changes_nothing(slots: list[int]) -> None:
    """Fault 16."""
    readers = SlotReaders()
    readers.add([1, 2])
    before = dict(readers.counts)
    with pytest.raises(InternalError, match="is unpinned but not pinned"):
        readers.remove(slots)
    assert readers.counts == before


def test_a_read_that_holds_a_slot_twice_ends_once_for_each() -> None:
    readers = SlotReaders()
    readers.add([1, 2])
    readers.add([2, 2, 3])
    assert readers.remove([2, 2, 3]) == [3]
    assert readers.counts == {1: 1, 2: 1}
