"""Marks on slots say what a set of numbers would."""

from hypothesis import given
from hypothesis import strategies as st

from aiokvoffload.cache.slot_marks import SlotMarks


@given(st.sets(st.integers(0, 29)), st.sets(st.integers(0, 29)), st.integers(0, 40))
def test_marks_are_a_set(added: set[int], removed: set[int], count: int) -> None:
    marks = SlotMarks(30)
    marks.add(sorted(added))
    marks.remove(sorted(removed & added))
    left = added - removed
    assert (list(marks), len(marks)) == (sorted(left), len(left))
    assert marks.first(count) == sorted(left)[:count]
    for slots in (sorted(removed), sorted(left), []):
        assert marks.are_all(slots) == (set(slots) <= left)


def test_repr_has_counts() -> None:
    marks = SlotMarks(30)
    marks.add([3, 4])
    assert repr(marks) == "SlotMarks(2 of 30 slots)"
