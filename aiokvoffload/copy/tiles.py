"""Descriptors of the tile kernel: what a block of one group is made of, and which blocks a job has.

A *tile* is a part of one fragment, small enough for one program of the kernel. Where the tiles of a block lie is the
same for every block but for its id, so the table of tiles is made once for each group, and a job only says which
blocks, and where their bytes lie outside: its descriptors grow with its blocks and not with its fragments.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from aiokvoffload.base import Ids
from aiokvoffload.copy.layout import GroupLayout

ELEMENTS_AT_ONCE = 2048
"""That one program of the kernel moves in one go: sixteen for each thread of four warps."""
LARGEST_ALIGNMENT = 16
"""The widest load of a thread."""

FIRST_RANGE_PART = 4

Descriptors = npt.NDArray[np.int64]


class KernelShape(NamedTuple):
    """Constants that the kernel is compiled for; see `kernels.move_tiles`."""

    tile_elements: int
    tiles_at_once: int
    element_bytes: int
    alignment: int


class TileRange(NamedTuple):
    """Tiles of consecutive blocks, numbered through: tile `n` is tile `n % tiles_per_block` of its block."""

    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class TileTable:
    """The tiles of one block of a group, in the order of its bytes outside.

    Attributes:
        rows: int64, shape (tiles, 4): address in row 0 of the tensor, bytes from row to row, offset within the block's
            bytes, size in bytes.
        offsets: the third column and the block's size behind it.
        shape: what the kernel must be compiled for.
    """

    rows: Descriptors
    offsets: Ids
    shape: KernelShape

    @property
    def block_bytes(self) -> int:
        """Bytes of one block over all its tensors."""
        return int(self.offsets[-1])

    def __len__(self) -> int:
        return len(self.rows)

    def position(self, tile: int) -> int:
        """Where a tile begins in the bytes of consecutive blocks."""
        block, rest = divmod(tile, len(self))
        return block * self.block_bytes + int(self.offsets[rest])

    def cut(self, num_blocks: int, blocks_per_chunk: int, *, max_bytes: int, max_blocks: int) -> Iterator[TileRange]:
        """Cut the tiles of `num_blocks` blocks into ranges, of whole chunks or at least whole blocks where one fits.

        The first range is smaller: nothing is under way while it is filled.

        Args:
            num_blocks: how many there are.
            blocks_per_chunk: where runs of slots may end.
            max_bytes: of one range; at least a tile.
            max_blocks: of one range.
        """
        tiles = len(self)
        whole = min(max_bytes // self.block_bytes, max_blocks)
        if whole:
            start, stop = 0, _whole_chunks(-(-whole // FIRST_RANGE_PART), blocks_per_chunk)
            while start < num_blocks:
                yield TileRange(start * tiles, min(stop, num_blocks) * tiles)
                start, stop = stop, stop + _whole_chunks(whole, blocks_per_chunk)
            return
        cuts = self._cut_block(max_bytes)
        for block in range(num_blocks):
            for start, stop in zip(cuts, cuts[1:], strict=False):
                yield TileRange(block * tiles + start, block * tiles + stop)

    def _cut_block(self, max_bytes: int) -> list[int]:
        cuts = [0]
        while cuts[-1] < len(self):
            reach = int(self.offsets[cuts[-1]]) + max_bytes
            cuts.append(int(np.searchsorted(self.offsets, reach, side="right")) - 1)
        return cuts

    def describe_blocks(self, block_ids: Ids, outside_ptrs: Ids) -> Descriptors:
        """What the kernel reads of each block: its id, and where its bytes lie outside; shape (blocks, 2)."""
        return np.stack((block_ids, outside_ptrs), axis=1)


def _whole_chunks(num_blocks: int, blocks_per_chunk: int) -> int:
    return num_blocks // blocks_per_chunk * blocks_per_chunk or num_blocks


def tile_table(layout: GroupLayout) -> TileTable:
    """The table of one group; loops over no block."""
    alignment = _alignment(layout)
    shape = _kernel_shape(layout, alignment)
    tile_bytes = shape.tile_elements * shape.element_bytes
    counts = -(-layout.fragment_bytes // tile_bytes)
    tensors = np.repeat(np.arange(len(counts)), counts)
    starts = (np.arange(len(tensors)) - np.repeat(np.cumsum(counts) - counts, counts)) * tile_bytes
    offsets = layout.fragment_offsets[tensors] + starts
    rows = np.stack(
        (
            layout.base_ptrs[tensors] + starts,
            layout.row_bytes[tensors],
            offsets,
            np.minimum(layout.fragment_bytes[tensors] - starts, tile_bytes),
        ),
        axis=1,
    )
    return TileTable(np.ascontiguousarray(rows), np.append(offsets, layout.block_bytes), shape)


def _alignment(layout: GroupLayout) -> int:
    """The largest power of two, up to 16, that divides every address and size. Slots begin on pages."""
    bits = int(np.bitwise_or.reduce(np.concatenate((layout.base_ptrs, layout.row_bytes, layout.fragment_bytes))))
    return min(LARGEST_ALIGNMENT, bits & -bits)


def _kernel_shape(layout: GroupLayout, alignment: int) -> KernelShape:
    """Tiles as large as the smallest fragment, so that small fragments leave no thread idle."""
    element_bytes = min(alignment, 8)
    smallest = int(layout.fragment_bytes.min()) // element_bytes
    tile_elements = min(ELEMENTS_AT_ONCE, max(alignment // element_bytes, 1 << (smallest - 1).bit_length()))
    return KernelShape(tile_elements, ELEMENTS_AT_ONCE // tile_elements, element_bytes, alignment)
