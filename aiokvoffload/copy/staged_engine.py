"""Copies in two stages: between blocks and a ring of GPU memory by a kernel, between the ring and slots by DMA.

A kernel moves fragments of any size at the speed of GPU memory, and DMA moves runs of adjacent slots at the speed of
the bus. Knows the order of the two; what moves is the backend's.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from aiokvoffload.base import Ids, Stream
from aiokvoffload.copy.direction import Direction
from aiokvoffload.copy.engine import Copies, CopyEngine, Lane, PartialCopyError
from aiokvoffload.copy.selection import GroupPart, Selection
from aiokvoffload.copy.slot_runs import SlotRuns, slot_runs
from aiokvoffload.copy.staging import MAX_SEGMENT_BLOCKS, Segment, Staging, StagingBackend
from aiokvoffload.copy.tiles import TileRange, TileTable
from aiokvoffload.device.base import Device
from aiokvoffload.errors import InternalError, OffloadError

NUM_SEGMENTS = 3
"""One is filled, one is emptied, and one is ready for whichever ends first."""


class StagedEngine(CopyEngine):
    """The engine of small fragments.

    Args:
        device: makes streams.
        make_backend: one backend for each lane.
    """

    def __init__(self, device: Device, make_backend: Callable[[], StagingBackend]) -> None:
        self.name = "staged"
        self._device, self._make_backend = device, make_backend

    def open_staging(self, direction: Direction, size_bytes: int) -> Staging:
        """A ring of a lane's own, so that no lane waits for another one's copies.

        Raises:
            ConfigError: the memory cannot be had.
        """
        # The kernel's short work goes before the engine's, or the bus would idle while a long kernel runs.
        stream = self._device.create_stream(priority=-1 if direction is Direction.STORE else 0)
        return Staging(self._make_backend(), stream, size_bytes=size_bytes, num_segments=NUM_SEGMENTS)

    def plan(self, selection: Selection, lane: Lane) -> Copies:
        """Cut the job into segments."""
        return StagedCopies(selection, lane)


@dataclass(frozen=True, slots=True)
class _Part:
    """One group's segments.

    Attributes:
        selected: blocks and slots.
        table: of the group.
        ranges: tiles of each segment.
        runs: of slots, cut where segments begin.
        first_runs: index of each segment's first run, and the number of runs.
        staging_ptrs: address in the ring of each run.
        sizes: bytes of each run.
    """

    selected: GroupPart
    table: TileTable
    ranges: Sequence[TileRange]
    runs: SlotRuns
    first_runs: Sequence[int]
    staging_ptrs: Ids
    sizes: Ids


class StagedCopies(Copies):
    """One job in segments; to be enqueued before the next one of its lane is planned, since it knows its segments."""

    def __init__(self, selection: Selection, lane: Lane) -> None:
        if lane.staging is None:
            raise InternalError(f"{lane!r} has no staging")
        self._selection, self._lane, self._staging = selection, lane, lane.staging
        self._stores = lane.direction is Direction.STORE
        self.first_stream = lane.staging.stream
        self.sources_stream = self.first_stream if self._stores else None
        self._parts: list[_Part] = []
        segments = 0
        for selected in selection.parts:
            part = self._plan_part(selected, segments)
            self._parts.append(part)
            segments += len(part.ranges)
        self._num_segments = segments

    def _plan_part(self, selected: GroupPart, segments_before: int) -> _Part:
        table = self._staging.backend.tables[selected.route.group_idx]
        num_blocks = selected.blocks.stop - selected.blocks.start
        limits = {"max_bytes": self._staging.segment_bytes, "max_blocks": MAX_SEGMENT_BLOCKS}
        ranges = list(table.cut(num_blocks, selected.route.blocks_per_chunk, **limits))
        starts = np.array([table.position(each.start) for each in ranges], dtype=np.int64)
        runs, first_runs = slot_runs(self._selection, selected).cut_at(starts)
        segment_ptrs = self._staging.upcoming(segments_before + len(ranges))[segments_before:]
        segments = np.searchsorted(starts, runs.positions, side="right") - 1
        staging_ptrs = segment_ptrs[segments] + runs.positions - starts[segments]
        return _Part(selected, table, ranges, runs, [*first_runs.tolist(), len(runs)], staging_ptrs, runs.sizes)

    def __len__(self) -> int:
        return self._num_segments

    def whole_chunks_before(self, run: int) -> int:
        """Chunks of which no tile lies in segment `run` or behind."""
        for part in self._parts:
            if run < len(part.ranges):
                selected = part.selected
                block = part.ranges[run].start // len(part.table)
                return selected.chunks.start + (selected.skipped_blocks + block) // selected.route.blocks_per_chunk
            run -= len(part.ranges)
        return len(self._selection.chunk_ids)

    def enqueue(self, *, ordered: bool) -> Iterator[bool]:
        """One segment in each step."""
        done = 0
        for part in self._parts:
            for index in range(len(part.ranges)):
                while True:
                    try:
                        enqueued = self._enqueue_segment(part, index, ordered=ordered)
                    except (OSError, OffloadError) as error:
                        raise PartialCopyError(str(error), done) from error
                    if enqueued:
                        break
                    yield False
                done += 1
                yield True

    def _enqueue_segment(self, part: _Part, index: int, *, ordered: bool) -> bool:
        tiles, table = part.ranges[index], part.table
        first_block, first_tile = divmod(tiles.start, len(table))
        block_ids = self._block_ids(part, first_block, -(-tiles.stop // len(table)))
        pairs = self._staging.descriptors.take(len(block_ids))
        if pairs is None:
            return False
        backend, segment, first = self._staging.backend, self._staging.take(), self.first_stream
        self._staging.describe(
            pairs, block_ids, segment.address - int(table.offsets[first_tile]), table.block_bytes
        )
        with backend.session():
            backend.wait(first, segment.emptied)
            try:
                backend.upload(segment.descriptors_ptr, pairs.ctypes.data, pairs.nbytes, first)
            finally:
                self._staging.descriptors.uploaded(first, len(pairs))
            stages = (
                lambda stream: self._move(part, segment, first_tile, tiles, stream),
                lambda stream: self._transfer(part, index, stream, ordered=ordered),
            )
            self._run_stages(segment, *(stages if self._stores else stages[::-1]))
        return True

    def _block_ids(self, part: _Part, start: int, stop: int) -> Ids:
        offset = part.selected.blocks.start
        return self._selection.block_ids[offset + start : offset + stop]

    def _run_stages(
        self, segment: Segment, fill: Callable[[Stream], None], empty: Callable[[Stream], None]
    ) -> None:
        """Whatever fails, the segment is used again only after what was enqueued has ended."""
        backend, first, last = self._staging.backend, self.first_stream, self._lane.stream
        fill(first)  # what a failure leaves half done is followed, in the same stream, by whoever fills it next
        segment.filled = backend.record(first, segment.filled)
        backend.wait(last, segment.filled)
        try:
            empty(last)
        finally:
            segment.emptied = backend.record(last, segment.emptied)

    def _move(self, part: _Part, segment: Segment, first_tile: int, tiles: TileRange, stream: Stream) -> None:
        self._staging.backend.move_tiles(
            part.selected.route.group_idx,
            segment.descriptors_ptr,
            first_tile,
            tiles.stop - tiles.start,
            to_gpu=not self._stores,
            stream=stream,
        )

    def _transfer(self, part: _Part, index: int, stream: Stream, *, ordered: bool) -> None:
        runs = slice(part.first_runs[index], part.first_runs[index + 1])
        slots, staged, sizes = part.runs.ptrs[runs], part.staging_ptrs[runs], part.sizes[runs]
        # Out of the ring, what is read was written by the kernel before it in stream order.
        if self._stores:
            self._staging.backend.transfer(slots, staged, sizes, stream, ordered=True)
        else:
            self._staging.backend.transfer(staged, slots, sizes, stream, ordered=ordered)
