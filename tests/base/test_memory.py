"""Blocks as a caller may give them."""

from typing import Any

import numpy as np
import pytest

from aiokvoffload.base import CanonicalKVCacheRef, GPULoadStoreSpec
from aiokvoffload.errors import ArgumentError


def test_plain_ids_are_one_group_from_its_first_block() -> None:
    spec = GPULoadStoreSpec([3, 1])
    assert (spec.block_ids.tolist(), spec.group_sizes, spec.block_indices) == ([3, 1], (2,), (0,))
    assert "2 blocks" in repr(spec)


def test_a_range_is_as_good_as_a_list() -> None:
    assert GPULoadStoreSpec(range(2, 12, 3)).block_ids.tolist() == [2, 5, 8, 11]


def test_a_later_change_of_the_callers_array_changes_nothing() -> None:
    """Fault 39: small things are copied, big ones are not kept alive."""
    ids = np.array([1, 2, 3])
    spec = GPULoadStoreSpec(ids)
    ids[:] = 7
    assert spec.block_ids.tolist() == [1, 2, 3]


def test_numbers_of_numpy_are_whole_numbers_too() -> None:
    spec = GPULoadStoreSpec([1, 2], [np.int64(2)], (np.int32(4),))  # type: ignore[list-item, arg-type]
    assert (spec.group_sizes, spec.block_indices) == ((2,), (4,))
    assert [type(size) for size in (*spec.group_sizes, *spec.block_indices)] == [int, int]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1, 2], [1]), "sum to len"),
        (([1, 2], [3, -1]), "at least 0"),
        (([1, 2], [2], [0, 0]), "one index of at least 0 for each of 1 groups"),
        (([1, 2], [2], [-1]), "one index of at least 0"),
        (([1, -2],), "block_ids must be at least 0, got -2 at index 1"),
        (([1.0],), "whole numbers"),
        (([True],), "whole numbers"),
        ((3,), "one-dimensional"),
        (([1, [2]],), "block_ids must make an array"),
        ((range(10**13),), "block_ids must make an array"),
        (([2**63],), f"block_ids must be at most {2**63 - 1}, got {2**63} at index 0"),
        (([2**70],), "whole numbers"),
        (([1, 2], [2.0]), "group_sizes must be whole numbers"),
        (([1, 2], 2), "group_sizes must be whole numbers"),
        (([1, 2], [2], [1.5]), "block_indices must be whole numbers"),
    ],
)
def test_wrong_blocks_are_named(arguments: tuple[Any, ...], message: str) -> None:
    """Fault 48."""
    with pytest.raises(ArgumentError, match=message):
        GPULoadStoreSpec(*arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 0), "page_size_bytes must be a whole number of at least 1, got 0"),
        ((0, -64), "page_size_bytes must be a whole number of at least 1, got -64"),
        ((0, 64.0), "page_size_bytes must be a whole number of at least 1, got 64.0"),
        ((-1, 64), "tensor_idx must be a whole number of at least 0, got -1"),
        ((None, 64), "tensor_idx must be a whole number of at least 0, got None"),
    ],
)
def test_a_reference_to_nothing_is_refused_where_it_is_made(arguments: tuple[Any, ...], message: str) -> None:
    """Pools are planned by dividing by its bytes, before anybody compares them with the tensor's."""
    with pytest.raises(ArgumentError, match=f"CanonicalKVCacheRef.{message}"):
        CanonicalKVCacheRef(*arguments)


def test_a_reference_may_be_made_of_an_arrays_numbers() -> None:
    assert CanonicalKVCacheRef(*np.array([1, 64])).page_size_bytes == 64
