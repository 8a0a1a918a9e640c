"""Ids as arrays, and what is asked of them on a loop."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiokvoffload.base import as_ids, count_up, highest, lowest
from aiokvoffload.base.ids import SHORT, copied, pieces
from tests.interpreter import turns_given_away

ids = st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=3 * SHORT)


@given(values=ids)
def test_the_least_and_the_largest_are_those_of_python(values: list[int]) -> None:
    array = as_ids("ids", values)
    assert array.tolist() == values
    assert (lowest(array), highest(array)) == (min(values), max(values))
    assert type(lowest(array)) is type(highest(array)) is int


@given(count=st.integers(0, 10_000), at=st.integers(0, 9_999))
def test_pieces_are_all_of_it_in_order(count: int, at: int) -> None:
    numbers = np.arange(count)
    assert np.concatenate([numbers[piece] for piece in pieces(count)]).tolist() == numbers.tolist()
    if at < count:
        numbers[at] = 10_000
        assert highest(numbers) == 10_000
        numbers[at] = -1
        assert lowest(numbers) == -1


@pytest.mark.parametrize("values", [np.arange(10)[::2], np.arange(10)[::-1], np.arange(0), np.arange(600)])
def test_a_copy_is_of_its_own_and_can_be_written_to(values: np.ndarray) -> None:
    before, copy = values.tolist(), copied(values)
    assert copy.tolist() == as_ids("ids", values).tolist() == before
    copy[:] = 77
    assert values.tolist() == before


def test_seen_as_unsigned_a_negative_number_is_a_large_one() -> None:
    for count in (2, 2 * SHORT):
        array = np.zeros(count, dtype=np.int64)
        array[1] = -1
        assert highest(array.view(np.uint64)) == 2**64 - 1


@pytest.mark.parametrize("stop", [3, SHORT + 1])
def test_a_range_of_any_length_is_taken(stop: int) -> None:
    assert as_ids("ids", range(1, 2 * stop, 2)).tolist() == list(range(1, 2 * stop, 2))


@pytest.mark.parametrize("size", [1, 26, SHORT, SHORT + 1, 400, 497, 3000])
@pytest.mark.parametrize("ask", [lowest, highest, copied, lambda array: as_ids("ids", array)])
def test_an_array_is_looked_through_without_giving_up_the_interpreter(
    size: int, ask: Callable[[np.ndarray], object]
) -> None:
    """I10: a thread that computes would keep it for 5 ms, and the loop waits."""
    array = np.array([7] * size)
    assert turns_given_away(lambda: ask(array)) == 0


def test_a_list_and_a_short_range_are_taken_without_giving_up_the_interpreter() -> None:
    values = list(range(26))
    assert turns_given_away(lambda: as_ids("ids", values)) == 0
    assert turns_given_away(lambda: as_ids("ids", range(26))) == 0


@pytest.mark.parametrize(("start", "stop"), [(0, 26), (3, 512), (500, 513), (7, 7), (600, 600)])
def test_numbers_are_counted_up(start: int, stop: int) -> None:
    assert count_up(start, stop).tolist() == list(range(start, stop))
    assert count_up(start, stop).dtype == np.int64


def test_short_counts_are_one_array_that_nobody_changes() -> None:
    with pytest.raises(ValueError, match="read-only"):
        count_up(0, 26)[0] = 1
    assert turns_given_away(lambda: count_up(0, 26)) == 0


def test_what_gives_up_the_interpreter_is_seen() -> None:
    """The check can fail. Of a short array it would, too, but on a busy machine hardly ever loses it."""
    assert turns_given_away(np.zeros(1_000_000).argmax, 100) > 0
