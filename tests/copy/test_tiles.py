"""Tables of tiles: every byte of a block once, and the cuts between segments."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from aiokvoffload.copy.layout import GroupLayout
from aiokvoffload.copy.tiles import TileTable, tile_table

fragments = st.lists(st.tuples(st.integers(1, 40_000), st.integers(0, 64)), min_size=1, max_size=6)
"""Bytes of each tensor's fragment, and of the padding behind it."""


def layout_of(sizes: list[tuple[int, int]]) -> GroupLayout:
    used = np.array([size for size, _ in sizes], dtype=np.int64)
    return GroupLayout(
        base_ptrs=np.arange(len(sizes), dtype=np.int64) * (1 << 40) + (1 << 30),
        row_bytes=used + np.array([padding for _, padding in sizes], dtype=np.int64),
        fragment_bytes=used,
        fragment_offsets=np.cumsum(used) - used,
        num_blocks=4,
        spaces=(0,),
    )


@given(fragments)
def test_the_tiles_of_a_block_are_its_bytes_each_once_and_in_order(sizes: list[tuple[int, int]]) -> None:
    table, layout = tile_table(layout_of(sizes)), layout_of(sizes)
    ptrs, rows, offsets, tile_bytes = table.rows.T
    assert (offsets + tile_bytes).tolist() == table.offsets[1:].tolist()
    assert table.block_bytes == layout.block_bytes
    tensors = np.searchsorted(layout.base_ptrs, ptrs, side="right") - 1
    assert (ptrs - layout.base_ptrs[tensors] == offsets - layout.fragment_offsets[tensors]).all()
    assert (rows == layout.row_bytes[tensors]).all()


@given(fragments)
def test_the_kernel_s_alignment_divides_every_address_and_size_and_no_tile_is_too_large(
    sizes: list[tuple[int, int]],
) -> None:
    table = tile_table(layout_of(sizes))
    shape = table.shape
    assert not np.any(table.rows % shape.alignment)
    assert shape.alignment % shape.element_bytes == 0
    assert table.rows[:, 3].max() <= shape.tile_elements * shape.element_bytes


@given(
    fragments,
    st.integers(1, 60),
    st.integers(1, 8),
    st.fixed_dictionaries({"max_bytes": st.integers(16_384, 200_000), "max_blocks": st.integers(1, 30)}),
    st.booleans(),
)
def test_cuts_leave_no_tile_out_and_keep_to_the_limits(
    sizes: list[tuple[int, int]], blocks: int, per_chunk: int, limits: dict[str, int], small_first: bool
) -> None:
    table = tile_table(layout_of(sizes))
    ranges = table.cut(blocks, per_chunk, small_first=small_first, **limits)
    assert [each.stop for each in ranges] == [*(each.start for each in ranges[1:]), blocks * len(table)]
    assert ranges[0].start == 0
    for each in ranges:
        assert 0 < table.position(each.stop) - table.position(each.start) <= limits["max_bytes"]
        assert -(-each.stop // len(table)) - each.start // len(table) <= limits["max_blocks"]


def test_segments_end_where_chunks_end_and_the_short_one_is_where_it_is_asked_for() -> None:
    table: TileTable = tile_table(layout_of([(1024, 0)]))
    for small_first in (True, False):
        ranges = table.cut(64, 4, max_bytes=18 * 1024, max_blocks=1000, small_first=small_first)
        sizes = [(each.stop - each.start) // len(table) for each in ranges]
        assert sizes == ([4, 16, 16, 16, 12] if small_first else [12, 16, 16, 16, 4])
        assert all(start.stop == stop.start for start, stop in pairwise(ranges))
