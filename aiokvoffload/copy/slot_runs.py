"""Where a job's bytes lie in host memory, cut to runs of adjacent slots.

Knows addresses of slots; knows nothing of the GPU. The bytes of a job's blocks, one block behind the other, have
*positions*: a run is where positions and addresses go side by side.
"""

from dataclasses import dataclass

import numpy as np

from aiokvoffload.base import Ids
from aiokvoffload.copy.selection import GroupPart, Selection


@dataclass(frozen=True, slots=True)
class SlotRuns:
    """Runs of one group's part of a job, in order.

    Attributes:
        positions: where each run begins.
        ptrs: its address.
        size_bytes: of all of them.
    """

    positions: Ids
    ptrs: Ids
    size_bytes: int

    def __len__(self) -> int:
        return len(self.positions)

    def cut_at(self, starts: Ids) -> tuple["SlotRuns", Ids]:
        """The same bytes with a new run at each of `starts`, which are increasing and begin with 0.

        Returns:
            The runs, and the index of the run that begins at each start.
        """
        new = starts[self.positions[np.searchsorted(self.positions, starts, side="right") - 1] != starts]
        positions = np.concatenate((self.positions, new))
        positions.sort()
        runs = np.searchsorted(self.positions, positions, side="right") - 1
        ptrs = self.ptrs[runs] + positions - self.positions[runs]
        return SlotRuns(positions, ptrs, self.size_bytes), np.searchsorted(positions, starts)

    @property
    def sizes(self) -> Ids:
        """Bytes of each run."""
        sizes = np.empty_like(self.positions)
        np.subtract(self.positions[1:], self.positions[:-1], out=sizes[:-1])
        sizes[-1] = self.size_bytes - self.positions[-1]
        return sizes


def slot_runs(selection: Selection, part: GroupPart) -> SlotRuns:
    """Runs of one group's part; loops over no chunk."""
    route = part.route
    num_blocks = part.blocks.stop - part.blocks.start
    block_bytes = route.layout.block_bytes
    ptrs = route.pool_ptr + selection.chunk_ids[part.chunks] * route.slot_bytes
    ptrs[0] += part.skipped_blocks * block_bytes
    positions = (np.arange(len(ptrs)) * route.blocks_per_chunk - part.skipped_blocks) * block_bytes
    positions[0] = 0
    starts = np.ones(len(ptrs), dtype=bool)
    # Rows padded to whole pages do not touch, and no single copy may run over two registrations of host memory.
    starts[1:] = ptrs[1:] - ptrs[:-1] != positions[1:] - positions[:-1]
    starts |= route.begin_pieces(ptrs)
    return SlotRuns(positions[starts], ptrs[starts], num_blocks * block_bytes)


def block_ptrs(selection: Selection, part: GroupPart) -> Ids:
    """Address in host memory of each block of one group's part."""
    route = part.route
    num_blocks = part.blocks.stop - part.blocks.start
    chunks, blocks = np.divmod(np.arange(part.skipped_blocks, part.skipped_blocks + num_blocks), route.blocks_per_chunk)
    chunk_ptrs = route.pool_ptr + selection.chunk_ids[part.chunks] * route.slot_bytes
    ptrs: Ids = chunk_ptrs[chunks] + blocks * route.layout.block_bytes
    return ptrs
