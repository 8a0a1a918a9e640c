"""Keys and blocks of a call, checked and cut before any byte moves."""

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiokvoffload.base import GPULoadStoreSpec, OffloadKey, make_offload_key
from aiokvoffload.base.untracked import MAX_TRACKED, Untracked
from aiokvoffload.config import GroupConfig
from aiokvoffload.errors import ArgumentError
from aiokvoffload.service.segments import chains, copy_of, plan_load, plan_store
from tests.interpreter import turns_given_away
from tests.service.conftest import keys_of

ONE = (GroupConfig(),)
PAIRS = (GroupConfig(blocks_per_chunk=2),)
TWO_GROUPS = (GroupConfig(blocks_per_chunk=2), GroupConfig())


def test_plain_ids_are_the_blocks_of_the_keys_one_group() -> None:
    (segment,) = plan_store(keys_of(3, group_idx=1), [7, 8, 9], TWO_GROUPS)
    assert (segment.group_idx, segment.block_ids.tolist()) == (1, [7, 8, 9])
    assert segment.blocks_of(1, 2).group_sizes == (0, 2)


def test_groups_are_told_apart_by_their_keys() -> None:
    keys = keys_of(2) + keys_of(3, group_idx=1)
    spec = GPULoadStoreSpec([0, 1, 2, 3, 7, 8, 9], [4, 3], [4, 5])
    first, second = plan_store(keys, spec, TWO_GROUPS)
    assert (first.keys, first.block_ids.tolist(), first.block_index) == (tuple(keys[:2]), [0, 1, 2, 3], 4)
    assert (second.keys, second.block_ids.tolist(), second.block_index) == (tuple(keys[2:]), [7, 8, 9], 5)


@pytest.mark.parametrize("count", [3, MAX_TRACKED + 1])
def test_a_segment_keeps_the_keys_that_it_was_given(count: int) -> None:
    keys = keys_of(count)
    expected = tuple(keys)
    (segment,) = plan_load(keys, range(count), ONE)
    keys.reverse()
    assert tuple(segment.keys) == segment.keys[:] == expected
    assert isinstance(segment.keys, Untracked) is (count > MAX_TRACKED)


@pytest.mark.parametrize("keys", [set(keys_of(3)), frozenset(keys_of(3)), b"key", "key", None, 7])
def test_what_is_no_keys_in_order_is_refused(keys: Any) -> None:
    """I5: a set's blocks would be stored under each other's keys."""
    with pytest.raises(ArgumentError, match=f"keys must be a sequence of offload keys, got a {type(keys).__name__}"):
        copy_of(keys)


def test_chains_of_several_groups_are_checked_before_any_is_used() -> None:
    first, second = keys_of(2), keys_of(1, group_idx=1)
    assert chains([deque(first), second], 2, checks_one=False) == [tuple(first), tuple(second)]
    with pytest.raises(ArgumentError, match=r"keys\[0\] is of group 7, there are 2 groups"):
        chains([keys_of(2), [make_offload_key(b"x" * 32, 7)]], 2, checks_one=False)
    with pytest.raises(ArgumentError, match="keys must be a sequence of offload keys, got a int"):
        chains([keys_of(2), 5], 2, checks_one=False)


def test_a_load_may_begin_and_end_inside_a_chunk() -> None:
    """Fault 47."""
    (segment,) = plan_load(keys_of(3), GPULoadStoreSpec([10, 11, 12, 13], [4], [5]), PAIRS)
    pieces = [segment.blocks_of(chunk, 1) for chunk in range(3)]
    assert [piece.block_ids.tolist() for piece in pieces] == [[10], [11, 12], [13]]
    assert [piece.block_indices for piece in pieces] == [(5,), (6,), (8,)]


@given(per_chunk=st.integers(1, 5), index=st.integers(0, 30), num_blocks=st.integers(1, 40), run_keys=st.integers(1, 7))
def test_runs_cover_the_blocks_of_a_load_exactly_once(
    per_chunk: int, index: int, num_blocks: int, run_keys: int
) -> None:
    num_keys = -(-(index % per_chunk + num_blocks) // per_chunk)
    blocks = GPULoadStoreSpec(np.arange(100, 100 + num_blocks), [num_blocks], [index])
    (segment,) = plan_load(keys_of(num_keys), blocks, (GroupConfig(blocks_per_chunk=per_chunk),))
    covered: list[int] = []
    for first in range(0, num_keys, run_keys):
        run = segment.blocks_of(first, len(segment.keys[first : first + run_keys]))
        assert run.block_indices[0] == index + len(covered)
        covered += run.block_ids.tolist()
    assert covered == blocks.block_ids.tolist()


def test_some_chunks_of_a_store_keep_their_own_blocks() -> None:
    (segment,) = plan_store(keys_of(3), [1, 2, 3, 4, 5, 6], PAIRS)
    assert segment.blocks_of_some([0, 2]).block_ids.tolist() == [1, 2, 5, 6]
    (segment,) = plan_store(keys_of(3), [4, 5, 6], ONE)
    assert segment.blocks_of_some([0, 2]).block_ids.tolist() == [4, 6]


def test_a_short_call_of_two_groups_is_checked_without_giving_up_the_interpreter() -> None:
    """I10."""
    keys = keys_of(13) + keys_of(13, group_idx=1)
    spec = GPULoadStoreSpec(range(39), [26, 13])
    assert turns_given_away(lambda: plan_store(keys, spec, TWO_GROUPS)) == 0


@pytest.mark.parametrize("groups", [ONE, PAIRS])
def test_a_short_call_is_checked_without_giving_up_the_interpreter(groups: tuple[GroupConfig]) -> None:
    """I10."""
    keys = keys_of(26)
    blocks = list(range(26 * groups[0].blocks_per_chunk))

    def check() -> None:
        (segment,) = plan_store(keys, blocks, groups)
        segment.blocks_of_some([3, 4, 9])
        (segment,) = plan_load(keys, blocks, groups)
        segment.blocks_of(2, 9)

    assert turns_given_away(check) == 0


@pytest.mark.parametrize("index", [0, 50, 99])
@pytest.mark.parametrize("byte", [-4, -3, -2, -1])
def test_one_key_of_another_group_is_found_among_many(index: int, byte: int) -> None:
    """I5: whichever byte says so."""
    keys = keys_of(100)
    other = bytearray(keys[index])
    other[byte] = 2
    keys[index] = OffloadKey(bytes(other))
    with pytest.raises(
        ArgumentError, match=rf"keys\[{index}\] is of group {2 << 8 * (-1 - byte)}, the groups are 0 to 1"
    ):
        plan_store(keys, GPULoadStoreSpec(range(100), [0, 100], [0, 0]), TWO_GROUPS)


@pytest.mark.parametrize("index", [0, 50, 99])
def test_many_keys_need_not_be_of_one_length(index: int) -> None:
    keys = keys_of(100, group_idx=1)
    keys[index] = make_offload_key(b"x", 1)
    (segment,) = plan_store(keys, GPULoadStoreSpec(range(100), [0, 100], [0, 0]), TWO_GROUPS)
    assert (segment.group_idx, segment.keys) == (1, tuple(keys))
    keys[40] = keys[60]
    with pytest.raises(ArgumentError, match="100 keys of which 99 are distinct"):
        plan_store(keys, range(100), TWO_GROUPS)


def test_nothing_is_legal() -> None:
    """Fault 48: zero blocks."""
    assert plan_store([], [], ONE) == []
    assert plan_load([], GPULoadStoreSpec([]), ONE) == []


@pytest.mark.parametrize(
    ("keys", "blocks", "groups", "message"),
    [
        (keys_of(2), [1], ONE, "2 keys take 2 blocks .* got 1 blocks"),
        (keys_of(1), [1], PAIRS, "1 keys take 2 blocks"),
        (keys_of(1), GPULoadStoreSpec([1, 2], [2], [1]), PAIRS, "from index 1"),
        (keys_of(2) + keys_of(1), [1, 2, 3], ONE, "keys must not repeat, got 3 keys of which 2 are distinct"),
        (keys_of(1, group_idx=3), [1], ONE, "is of group 3, the groups are 0 to 0"),
        (keys_of(1, group_idx=1) + keys_of(1), [1, 2, 3], TWO_GROUPS, "group order"),
        (keys_of(1) + keys_of(1, group_idx=1), [1, 2, 3], TWO_GROUPS, "must be a GPULoadStoreSpec"),
        (keys_of(1), GPULoadStoreSpec([1], [1]), TWO_GROUPS, "blocks must have 2 groups, got 1"),
        (["not bytes"], [1], ONE, "keys must be offload keys"),
        ([b"abc"], [1], ONE, "keys must be offload keys"),
        ([keys_of(1)], [1], ONE, "keys must be offload keys \\(hash and 4 bytes"),
        ([*keys_of(1), "x" * 13], [1, 2], ONE, "keys must be one flat sequence of offload keys"),
        (keys_of(1), [-1], ONE, "block_ids must be at least 0, got -1 at index 0"),
        (keys_of(1), [0.5], ONE, "whole numbers"),
        (keys_of(1), [[1]], ONE, "one-dimensional"),
    ],
)
def test_a_wrong_store_names_what_is_wrong(
    keys: Sequence[Any], blocks: Any, groups: Sequence[GroupConfig], message: str
) -> None:
    """Fault 48."""
    with pytest.raises(ArgumentError, match=message):
        plan_store(keys, blocks, groups)


@pytest.mark.parametrize(
    ("num_keys", "blocks", "message"),
    [
        (1, [1, 2, 3], "3 blocks from index 0 lie in 2 chunks of 2, got 1 keys"),
        (2, [1, 2], "lie in 1 chunks"),
        (1, [], "0 blocks"),
    ],
)
def test_a_load_of_other_chunks_than_its_keys_names_both(num_keys: int, blocks: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        plan_load(keys_of(num_keys), blocks, PAIRS)
