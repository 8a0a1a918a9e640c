"""From ids to fragments: which bytes go where.

Knows the layout of a slot: block-major, then tensor in layer order. Knows nothing of streams, and loops over groups
only, never over blocks.
"""

from dataclasses import dataclass

import numpy as np

from aiokvoffload.base import Ids, count_up
from aiokvoffload.copy.direction import Direction
from aiokvoffload.copy.routes import Route
from aiokvoffload.copy.selection import GroupPart, Selection


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """Copies of one job, in the order of its chunks. Row i of the arrays is one contiguous copy, a *run*.

    The arrays must live until the copies have ended: an engine may read them as late as that (fault 5).

    Attributes:
        src_ptrs: int64 addresses to read.
        dst_ptrs: int64 addresses to write.
        sizes: bytes of each run.
        first_chunks: position, in the job's chunks, of the first chunk that each run touches.
    """

    src_ptrs: Ids
    dst_ptrs: Ids
    sizes: Ids
    first_chunks: Ids

    def __len__(self) -> int:
        return len(self.sizes)

    def part(self, start: int, stop: int) -> "CopyPlan":
        """Some of the runs; the arrays stay this plan's."""
        piece = slice(start, stop)
        return CopyPlan(self.src_ptrs[piece], self.dst_ptrs[piece], self.sizes[piece], self.first_chunks[piece])

    def whole_chunks_before(self, run: int) -> int:
        """How many leading chunks lie wholly in the runs before `run`."""
        return int(self.first_chunks[run])


def plan_copies(direction: Direction, selection: Selection) -> CopyPlan:
    """Turn a checked job into runs, adjacent fragments merged."""
    parts = [_plan_part(selection, part) for part in selection.parts]
    if not parts:
        none = np.empty(0, dtype=np.int64)
        return CopyPlan(none, none, none, none)
    gpu_ptrs, host_ptrs, sizes, first_chunks = (
        parts[0] if len(parts) == 1 else (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    )
    if direction is Direction.STORE:
        return CopyPlan(gpu_ptrs, host_ptrs, sizes, first_chunks)
    return CopyPlan(host_ptrs, gpu_ptrs, sizes, first_chunks)


def _plan_part(selection: Selection, part: GroupPart) -> tuple[Ids, Ids, Ids, Ids]:
    route, layout = part.route, part.route.layout
    block_ids = selection.block_ids[part.blocks]
    chunk_ids = selection.chunk_ids[part.chunks]
    positions = count_up(part.skipped_blocks, part.skipped_blocks + len(block_ids))
    if route.blocks_per_chunk == 1:  # the same, with four operations less
        chunks, host_starts = positions, route.pool_ptr + chunk_ids * route.slot_bytes
    else:
        chunks, blocks_in_chunk = np.divmod(positions, route.blocks_per_chunk)
        host_starts = route.pool_ptr + chunk_ids[chunks] * route.slot_bytes + blocks_in_chunk * layout.block_bytes
    gpu_ptrs = (layout.base_ptrs + block_ids[:, None] * layout.row_bytes).ravel()
    host_ptrs = (host_starts[:, None] + layout.fragment_offsets).ravel()
    sizes = layout.fragment_bytes[None].repeat(len(block_ids), axis=0).ravel()
    first_chunks = (chunks + part.chunks.start).repeat(len(layout.base_ptrs))
    if len(layout.base_ptrs) > 1 or len(block_ids) == 1:
        # Neighbours in the slot lie in different tensors. Even where those touch, they may be separate allocations,
        # which no single copy may span.
        return gpu_ptrs, host_ptrs, sizes, first_chunks
    return _merge(gpu_ptrs, host_ptrs, sizes, first_chunks, route)


def _merge(gpu_ptrs: Ids, host_ptrs: Ids, sizes: Ids, first_chunks: Ids, route: Route) -> tuple[Ids, Ids, Ids, Ids]:
    joins = (gpu_ptrs[1:] == gpu_ptrs[:-1] + sizes[:-1]) & (host_ptrs[1:] == host_ptrs[:-1] + sizes[:-1])
    joins &= ~route.begin_pieces(host_ptrs[1:])
    starts = np.flatnonzero(np.concatenate(([True], ~joins)))
    return gpu_ptrs[starts], host_ptrs[starts], np.add.reduceat(sizes, starts), first_chunks[starts]
