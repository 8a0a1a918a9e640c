"""Where a job's bytes lie in host memory, cut to runs of adjacent slots.

Knows addresses of slots; knows nothing of the GPU. The bytes of a job's blocks, one block behind the other, have
*positions*: a run is where positions and addresses go side by side.
"""

from dataclasses import dataclass

import numpy as np

from aiokvoffload.base import Ids, count_up
from aiokvoffload.copy.selection import GroupPart, Selection


@dataclass(frozen=True, slots=True)
class SlotRuns:
    """Runs of one group's part of a job, in order.

    Attributes:
        positions: where each run begins.
        ptrs: its address.
        stop: position behind the last one.
    """

    positions: Ids
    ptrs: Ids
    stop: int

    def __len__(self) -> int:
        return len(self.positions)

    def cut_at(self, cuts: Ids) -> "SlotRuns":
        """The same bytes with a new run at each of `cuts`, which are increasing and begin where the first run does."""
        new = cuts[self.positions[np.searchsorted(self.positions, cuts, side="right") - 1] != cuts]
        positions = np.concatenate((self.positions, new))
        positions.sort()
        runs = np.searchsorted(self.positions, positions, side="right") - 1
        ptrs = self.ptrs[runs] + positions - self.positions[runs]
        return SlotRuns(positions, ptrs, self.stop)

    @property
    def sizes(self) -> Ids:
        """Bytes of each run."""
        sizes = np.empty_like(self.positions)
        np.subtract(self.positions[1:], self.positions[:-1], out=sizes[:-1])
        sizes[-1] = self.stop - self.positions[-1]
        return sizes


def slot_runs(selection: Selection, part: GroupPart, span: range | None = None, *, cuts: Ids | None = None) -> SlotRuns:
    """Runs of one group's part; loops over no chunk.

    Args:
        selection: the job.
        part: one of its parts.
        span: positions, if it is not to be all of them.
        cuts: positions where a run has to begin, increasing, the span's first among them.
    """
    route, block_bytes = part.route, part.route.layout.block_bytes
    span = range((part.blocks.stop - part.blocks.start) * block_bytes) if span is None else span
    chunk_bytes, skipped_bytes = route.blocks_per_chunk * block_bytes, part.skipped_blocks * block_bytes
    first = part.chunks.start + (skipped_bytes + span.start) // chunk_bytes
    stop = part.chunks.start - (-(skipped_bytes + span.stop) // chunk_bytes)
    ptrs = route.pool_ptr + selection.chunk_ids[first:stop] * route.slot_bytes
    positions = count_up(first - part.chunks.start, stop - part.chunks.start) * chunk_bytes - skipped_bytes
    ptrs[0] += span.start - positions[0]
    positions[0] = span.start
    starts = np.ones(len(ptrs), dtype=bool)
    # Rows padded to whole pages do not touch, and no single copy may run over two registrations of host memory.
    starts[1:] = ptrs[1:] - ptrs[:-1] != positions[1:] - positions[:-1]
    starts |= route.begin_pieces(ptrs)
    if cuts is None:
        return SlotRuns(positions[starts], ptrs[starts], span.stop)
    cut_chunks = (cuts + skipped_bytes) // chunk_bytes - (first - part.chunks.start)
    begins_chunk = positions[cut_chunks] == cuts
    starts[cut_chunks] |= begins_chunk
    runs = SlotRuns(positions[starts], ptrs[starts], span.stop)
    return runs if begins_chunk.all() else runs.cut_at(cuts)


def block_ptrs(selection: Selection, part: GroupPart) -> Ids:
    """Address in host memory of each block of one group's part."""
    route = part.route
    num_blocks = part.blocks.stop - part.blocks.start
    chunks, blocks = np.divmod(count_up(part.skipped_blocks, part.skipped_blocks + num_blocks), route.blocks_per_chunk)
    chunk_ptrs = route.pool_ptr + selection.chunk_ids[part.chunks] * route.slot_bytes
    ptrs: Ids = chunk_ptrs[chunks] + blocks * route.layout.block_bytes
    return ptrs
