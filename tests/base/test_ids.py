"""Ids as arrays, and what is asked of them on a loop."""

import resource
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from aiokvoffload.base import as_ids, count_up, highest, lowest
from aiokvoffload.base.ids import SHORT, zero_table
from aiokvoffload.errors import ArgumentError
from tests.interpreter import turns_given_away

ids = st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=3 * SHORT)


@given(values=ids)
def test_the_least_and_the_largest_are_those_of_python(values: list[int]) -> None:
    array = as_ids("ids", values)
    assert array.tolist() == values
    assert (lowest(array), highest(array)) == (min(values), max(values))
    assert type(lowest(array)) is type(highest(array)) is int


def test_seen_as_unsigned_a_negative_number_is_a_large_one() -> None:
    for count in (2, 2 * SHORT):
        array = np.zeros(count, dtype=np.int64)
        array[1] = -1
        assert highest(array.view(np.uint64)) == 2**64 - 1


def test_a_tensor_of_ids_is_taken_as_what_it_holds_then_and_without_a_warning() -> None:
    tensor = torch.tensor([3, 1])
    ids = as_ids("ids", tensor)
    tensor[0] = 7
    assert ids.tolist() == [3, 1]


def test_a_tensor_that_keeps_a_gradient_is_refused_as_any_other_number_that_is_no_id() -> None:
    """It raised what torch raises."""
    with pytest.raises(ArgumentError, match=r"ids must make an array of whole numbers .* grad"):
        as_ids("ids", torch.arange(3.0, requires_grad=True))


@pytest.mark.parametrize("stop", [3, SHORT + 1])
def test_a_range_of_any_length_is_taken(stop: int) -> None:
    assert as_ids("ids", range(1, 2 * stop, 2)).tolist() == list(range(1, 2 * stop, 2))


@pytest.mark.parametrize("size", [1, 26, SHORT, SHORT + 1, 400])
@pytest.mark.parametrize("ask", [lowest, highest, lambda array: as_ids("ids", array)])
def test_a_short_array_is_looked_through_without_giving_up_the_interpreter(
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


def test_a_table_has_its_memory_before_anybody_looks_into_it() -> None:
    """I10: a loop would wait for the pages."""
    table = zero_table(5, 1 << 20, dtype=np.int64)  # 40 MiB: of so much none is what somebody has used before
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    table[:, ::64] += 1
    assert resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before < 10  # its huge pages are 20
    assert table.sum() == 5 << 14
    assert zero_table(2, dtype=np.int32).dtype == np.int32


def test_short_counts_are_one_array_that_nobody_changes() -> None:
    with pytest.raises(ValueError, match="read-only"):
        count_up(0, 26)[0] = 1
    assert turns_given_away(lambda: count_up(0, 26)) == 0


def test_what_gives_up_the_interpreter_is_seen() -> None:
    """The check can fail. Of a short array it would, too, but on a busy machine hardly ever loses it."""
    assert turns_given_away(np.zeros(1_000_000).argmax, 100) > 0
