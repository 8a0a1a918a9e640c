"""Descriptors of the tile kernel: what a block of one group is made of, and which blocks a job has.

A *tile* is a part of one fragment, small enough for one program of the kernel. Where the tiles of a block lie is the
same for every block but for its id, so the table of tiles is made once for each group, and a job only says which
blocks, and where their bytes lie outside: its descriptors grow with its blocks and not with its fragments.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from aiokvoffload.base import Ids
from aiokvoffload.copy.layout import GroupLayout

ELEMENTS_AT_ONCE = 2048
"""That one program of the kernel moves in one go: sixteen for each thread of four warps."""
LARGEST_ALIGNMENT = 16
"""The widest load of a thread."""

SHORT_PART = 4

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

    def cut(
        self, num_blocks: int, blocks_per_chunk: int, *, max_bytes: int, max_blocks: int, small_first: bool
    ) -> list[TileRange]:
        """Cut the tiles of `num_blocks` blocks into ranges, of whole chunks or at least whole blocks where one fits.

        Args:
            num_blocks: how many there are.
            blocks_per_chunk: where runs of slots may end.
            max_bytes: of one range; at least a tile.
            max_blocks: of one range.
            small_first: whether the first range is the short one, or the last: nothing else is under way while the
                kernel works on it.
        """
        whole = min(max_bytes // self.block_bytes, max_blocks)
        if not whole:
            cuts = [block * len(self) + cut for block in range(num_blocks) for cut in self._cut_block(max_bytes)]
            return [TileRange(*ends) for ends in pairwise([*cuts, num_blocks * len(self)])]
        short = min(num_blocks, _whole_chunks(-(-whole // SHORT_PART), blocks_per_chunk))
        sizes = [short, *_portions(num_blocks - short, _whole_chunks(whole, blocks_per_chunk))]
        stops = accumulate(sizes if small_first else reversed(sizes), initial=0)
        return [TileRange(start * len(self), stop * len(self)) for start, stop in pairwise(stops)]

    def _cut_block(self, max_bytes: int) -> Iterator[int]:
        """The tiles of one block with which a range begins."""
        cut = 0
        while cut < len(self):
            yield cut
            cut = int(np.searchsorted(self.offsets, int(self.offsets[cut]) + max_bytes, side="right")) - 1


def _portions(total: int, size: int) -> list[int]:
    return [min(size, total - start) for start in range(0, total, size)]


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
