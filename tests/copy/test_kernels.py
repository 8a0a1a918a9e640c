"""The tile kernel, through Triton's interpreter: the very code that a GPU compiles."""

import os

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from aiokvoffload.copy.layout import GroupLayout
from aiokvoffload.copy.tiles import TileTable, tile_table

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("the kernel is compiled here: see test_staged_engine.py", allow_module_level=True)
kernels = pytest.importorskip("aiokvoffload.copy.kernels")

NUM_BLOCKS = 12


def tensors_of(sizes: list[tuple[int, int]], seed: int) -> list[torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    shapes = [(NUM_BLOCKS, used + padding) for used, padding in sizes]
    return [torch.randint(0, 256, shape, dtype=torch.uint8, generator=random) for shape in shapes]


def table_of(tensors: list[torch.Tensor], sizes: list[tuple[int, int]]) -> TileTable:
    used = np.array([size for size, _ in sizes], dtype=np.int64)
    ptrs = np.array([tensor.data_ptr() for tensor in tensors], dtype=np.int64)
    rows = np.array([tensor.shape[1] for tensor in tensors], dtype=np.int64)
    return tile_table(GroupLayout(ptrs, rows, used, np.cumsum(used) - used, NUM_BLOCKS, (0,)))


def move(table: TileTable, blocks: list[int], outside: torch.Tensor, tiles: range, *, to_gpu: bool) -> None:
    rows = outside.data_ptr() + np.arange(len(blocks)) * table.block_bytes
    pairs = np.stack((np.array(blocks, dtype=np.int64), rows), axis=1)
    arguments = (pairs.ctypes.data, table.rows.ctypes.data, len(table), tiles.start, len(tiles), int(to_gpu))
    kernels.move_tiles[(3,)](*arguments, *table.shape)


def gathered(tensors: list[torch.Tensor], sizes: list[tuple[int, int]], blocks: list[int]) -> torch.Tensor:
    return torch.cat([tensor[blocks, :used] for tensor, (used, _) in zip(tensors, sizes, strict=True)], dim=1)


shapes = st.lists(st.tuples(st.integers(1, 600), st.integers(0, 40)), min_size=1, max_size=3)


@settings(max_examples=25)
@given(shapes, st.integers(0, 3), st.permutations(range(NUM_BLOCKS)), st.integers(1, 5))
def test_it_gathers_and_scatters_fragments_of_any_size_and_alignment(
    sizes: list[tuple[int, int]], shift: int, order: list[int], count: int
) -> None:
    sizes = [(used << shift, padding << shift) for used, padding in sizes]
    tensors, blocks = tensors_of(sizes, 1), order[:count]
    table = table_of(tensors, sizes)
    outside = torch.full((count, table.block_bytes), 0xEE, dtype=torch.uint8)
    move(table, blocks, outside, range(count * len(table)), to_gpu=False)
    assert torch.equal(outside, gathered(tensors, sizes, blocks))

    others = [block for block in order if block not in blocks]
    before = gathered(tensors, sizes, others)
    outside = torch.randint(0, 256, outside.shape, dtype=torch.uint8)
    move(table, blocks, outside, range(count * len(table)), to_gpu=True)
    assert torch.equal(outside, gathered(tensors, sizes, blocks))
    assert torch.equal(before, gathered(tensors, sizes, others)), "other blocks have changed"


@pytest.mark.parametrize("alignment", [1, 2, 4, 8, 16])
def test_each_alignment_has_its_own_kernel_and_padding_is_left_alone(alignment: int) -> None:
    sizes = [(3 * alignment, alignment), (17 * alignment, 0)]
    tensors = tensors_of(sizes, 2)
    table = table_of(tensors, sizes)
    assert table.shape.alignment == alignment
    padding = tensors[0][:, 3 * alignment :].clone()
    outside = torch.randint(0, 256, (2, table.block_bytes), dtype=torch.uint8)
    move(table, [4, 1], outside, range(2 * len(table)), to_gpu=True)
    assert torch.equal(gathered(tensors, sizes, [4, 1]), outside)
    assert torch.equal(tensors[0][:, 3 * alignment :], padding)


def test_it_begins_and_ends_within_a_block_and_touches_nothing_else() -> None:
    sizes = [(40_000, 0)]
    tensors = tensors_of(sizes, 3)
    table = table_of(tensors, sizes)
    assert len(table) == 3
    outside = torch.full((2, 40_000), 0xEE, dtype=torch.uint8)
    move(table, [7, 2], outside, range(1, 5), to_gpu=False)
    start, stop = table.position(1), table.position(5)
    expected = gathered(tensors, sizes, [7, 2]).ravel()
    assert torch.equal(outside.ravel()[start:stop], expected[start:stop])
    assert bool((outside.ravel()[:start] == 0xEE).all())
    assert bool((outside.ravel()[stop:] == 0xEE).all())
