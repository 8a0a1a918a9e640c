"""Where slots lie, and which of them one call can move."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiokvoffload.base import TierShape
from aiokvoffload.errors import ConfigError
from aiokvoffload.tiering.disk.layout import HEADER_BYTES, DiskPool, plan_disk_pools


def make_pool(num_slots: int = 100, num_stripes: int = 1) -> DiskPool:
    return DiskPool(0, (0,), 5000, 2, num_slots, num_stripes)


def test_a_slot_is_a_row_of_whole_pages_for_each_worker() -> None:
    pool = make_pool(num_stripes=3)
    assert (pool.row_bytes, pool.slot_bytes) == (8192, 16384)
    assert [pool.offset_of(slot) for slot in range(5)] == [HEADER_BYTES] * 3 + [HEADER_BYTES + 16384] * 2
    assert [pool.file_bytes(stripe) for stripe in range(3)] == [HEADER_BYTES + n * 16384 for n in (34, 33, 33)]


def test_adjacent_slots_make_one_run_in_whatever_order_they_are_asked_for() -> None:
    assert make_pool().runs([7, 3, 9, 8, 4], range(5), 10) == [[1, 4], [0, 3, 2]]
    assert make_pool().runs([1, 2, 3, 4, 5], range(5), 2) == [[0, 1], [2, 3], [4]]


@given(st.lists(st.integers(0, 99), unique=True, max_size=40), st.integers(1, 4), st.integers(1, 5))
def test_runs_hold_every_slot_once_and_are_adjacent_in_one_file(slots: list[int], stripes: int, longest: int) -> None:
    runs = make_pool(num_stripes=stripes).runs(slots, range(len(slots)), longest)
    assert sorted(position for run in runs for position in run) == list(range(len(slots)))
    for run in runs:
        first = slots[run[0]]
        assert [slots[position] for position in run] == [first + index * stripes for index in range(len(run))]
        assert len(run) <= longest


def test_every_group_has_room_for_as_many_chunks_and_equal_sizes_share_a_pool() -> None:
    pools = plan_disk_pools(10 * (4096 + 8192 + 4096) * 2, TierShape((4096, 8192, 100), 2), 1)
    assert [(pool.groups, pool.chunk_bytes, pool.num_slots) for pool in pools] == [
        ((0,), 4096, 10),
        ((1,), 8192, 10),
        ((2,), 100, 10),
    ]


def test_a_budget_that_is_too_small_says_what_is_needed() -> None:
    with pytest.raises(ConfigError, match="give at least 24576 bytes"):
        plan_disk_pools(16384, TierShape((4096, 8192), 1), 1)
