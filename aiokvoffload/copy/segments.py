"""One group's part of a job, cut to the segments of a ring: which tiles go where, and which runs of slots.

Pure arithmetic, without a loop over blocks. Knows addresses; moves nothing.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from aiokvoffload.base import Ids
from aiokvoffload.copy.direction import Direction
from aiokvoffload.copy.selection import GroupPart, Selection
from aiokvoffload.copy.slot_runs import slot_runs
from aiokvoffload.copy.staging import Runs, Staging
from aiokvoffload.copy.tiles import Descriptors, TileRange, TileTable

FIRST_PAIRS = 512
"""Blocks described before the first copy: it takes hardly longer than for one, and leaves time to describe the next."""
MANY_CHUNKS = 1024
"""Finding the runs of more at a time would keep the GIL for some hundred microseconds."""


@dataclass(frozen=True, slots=True)
class SegmentRuns:
    """What consecutive segments exchange with slots.

    Attributes:
        runs: between the ring and slots.
        first_runs: index of each segment's first run, and the number of runs behind them.
    """

    runs: Runs
    first_runs: Sequence[int]

    def of(self, index: int) -> tuple[int, int]:
        """First run of the `index`-th of these segments, and the one behind its last."""
        return self.first_runs[index], self.first_runs[index + 1]


@dataclass(frozen=True, slots=True)
class SegmentedPart:
    """One group's part of a job.

    What a segment has to do is worked out when its turn comes: the first copy begins sooner, and a job of many blocks
    keeps the GIL for some of them at a time.

    Attributes:
        table: the group's tiles.
        ranges: tiles of each segment.
    """

    table: TileTable
    ranges: Sequence[TileRange]
    _selection: Selection
    _selected: GroupPart
    _direction: Direction
    _starts: Ids
    _places: Ids

    @property
    def group_idx(self) -> int:
        """Which group."""
        return self._selected.route.group_idx

    def slices(self, max_pairs: int) -> Iterator[range]:
        """Segments whose descriptors are uploaded together: at most `max_pairs`, and of few chunks.

        Few at first, since the bus has nothing to do while they are described, and then four times as many at a time as
        before, since the bus is busy with those while more are described.
        """
        most = min(max_pairs, MANY_CHUNKS * self._selected.route.blocks_per_chunk)
        start, pairs, limit = 0, 0, min(FIRST_PAIRS, most)
        for index in range(len(self.ranges)):
            count = self.count_blocks(index)
            if index > start and pairs + count > limit:
                yield range(start, index)
                start, pairs, limit = index, 0, min(4 * pairs, most)
            pairs += count
        yield range(start, len(self.ranges))

    def count_blocks(self, segment: int) -> int:
        """Blocks that have tiles in a segment."""
        tiles, per_block = self.ranges[segment], len(self.table)
        return -(-tiles.stop // per_block) - tiles.start // per_block

    def runs_of(self, segments: range) -> SegmentRuns:
        """The runs of these segments."""
        starts = self._starts[segments.start : segments.stop]
        span = range(int(starts[0]), self.table.position(self.ranges[segments.stop - 1].stop))
        slots = slot_runs(self._selection, self._selected, span, cuts=starts)
        first_runs = np.append(np.searchsorted(slots.positions, starts), len(slots))
        staged = self._places[segments.start : segments.stop].repeat(first_runs[1:] - first_runs[:-1]) + slots.positions
        dst_ptrs, src_ptrs = (slots.ptrs, staged) if self._direction is Direction.STORE else (staged, slots.ptrs)
        return SegmentRuns(Runs(dst_ptrs, src_ptrs, slots.sizes), first_runs.tolist())

    def describe(self, segments: range, pairs: Descriptors) -> None:
        """Write a descriptor for each block of each of these segments: its id, and where its bytes lie in the ring."""
        per_block, first, last = len(self.table), self.ranges[segments.start], self.ranges[segments.stop - 1]
        start, stop = first.start // per_block, -(-last.stop // per_block)
        if len(pairs) == stop - start:  # of whole blocks, or of parts of a single one
            blocks = np.arange(start, stop)
            positions = blocks * self.table.block_bytes
            owners = np.searchsorted(self._starts, np.maximum(positions, self._starts[segments.start]), "right") - 1
        else:
            owners = np.arange(segments.start, segments.stop)
            blocks = self._starts[owners] // self.table.block_bytes
            positions = blocks * self.table.block_bytes
        pairs[:, 0] = self._selection.block_ids[self._selected.blocks][blocks]
        np.add(positions, self._places[owners], out=pairs[:, 1])

    def first_tile(self, segment: int) -> int:
        """Where, in its first block, a segment begins."""
        return self.ranges[segment].start % len(self.table)

    def whole_chunks_before(self, segment: int) -> int:
        """Leading chunks of the job of which no tile lies in this segment or behind."""
        block = self.ranges[segment].start // len(self.table)
        selected = self._selected
        return int(selected.chunks.start) + (selected.skipped_blocks + block) // selected.route.blocks_per_chunk


def cut_part(
    selection: Selection, selected: GroupPart, staging: Staging, direction: Direction, *, segments_before: int
) -> SegmentedPart:
    """Cut one group's part.

    Args:
        selection: the job.
        selected: the part.
        staging: whose segments it goes through.
        direction: from blocks to slots or back.
        segments_before: of other parts of the job.
    """
    route = selected.route
    table = staging.backend.tables[route.group_idx]
    ranges = table.cut(
        selected.blocks.stop - selected.blocks.start,
        route.blocks_per_chunk,
        max_bytes=staging.segment_bytes,
        max_blocks=staging.max_pairs,
        small_first=direction is Direction.STORE,
    )
    starts = np.array([table.position(each.start) for each in ranges], dtype=np.int64)
    return SegmentedPart(
        table=table,
        ranges=ranges,
        _selection=selection,
        _selected=selected,
        _direction=direction,
        _starts=starts,
        _places=staging.upcoming(segments_before + len(ranges))[segments_before:] - starts,
    )
