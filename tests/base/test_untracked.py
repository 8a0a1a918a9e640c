"""Long sequences are what they were given, and the garbage collector has nothing to go through."""

import gc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiokvoffload.base.untracked import MAX_TRACKED, Untracked, untracked

limits = st.none() | st.integers(-12, 12)


@given(items=st.lists(st.binary(max_size=3) | st.integers() | st.tuples(st.integers()), max_size=10).map(tuple))
def test_it_holds_the_very_items_in_their_order(items: tuple[object, ...]) -> None:
    held = Untracked(items)
    assert len(held) == len(items)
    assert all(one is other for one, other in zip(held, items, strict=True))
    assert all(held[index] is item for index, item in enumerate(items))


@given(count=st.integers(0, 10), start=limits, stop=limits)
def test_a_piece_is_the_tuple_that_it_would_be_of_a_tuple(count: int, start: int | None, stop: int | None) -> None:
    items = tuple(b"%d" % number for number in range(count))
    piece = Untracked(items)[start:stop]
    assert piece == items[start:stop]
    assert type(piece) is tuple


def test_beyond_the_last_there_is_nothing() -> None:
    with pytest.raises(IndexError):
        Untracked((1, 2))[2]


def test_a_short_tuple_stays_what_it_is_and_a_long_one_is_out_of_the_collectors_sight() -> None:
    short, long = tuple(range(MAX_TRACKED)), tuple(range(MAX_TRACKED + 1))
    assert untracked(short) is short
    held = untracked(long)
    assert tuple(held) == long
    assert [each for each in gc.get_referents(held) if gc.is_tracked(each) and not isinstance(each, type)] == []
