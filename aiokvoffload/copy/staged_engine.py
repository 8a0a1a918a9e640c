"""Copies in two stages: between blocks and a ring of GPU memory by a kernel, between the ring and slots by DMA.

A kernel moves fragments of any size at the speed of GPU memory, and DMA moves runs of adjacent slots at the speed of
the bus. Knows the order of the two; what moves is the backend's.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from aiokvoffload.base import Stream
from aiokvoffload.copy.direction import Direction
from aiokvoffload.copy.engine import MANY_BLOCKS, Copies, CopyEngine, Lane, PartialCopyError, Step
from aiokvoffload.copy.segments import SegmentedPart, SegmentRuns, cut_part
from aiokvoffload.copy.selection import Selection
from aiokvoffload.copy.staging import PAIR_BYTES, Runs, Staging, StagingBackend
from aiokvoffload.device.base import Device
from aiokvoffload.errors import InternalError, OffloadError

NUM_SEGMENTS = 2
"""One is filled while the other is emptied. The kernel needs a tenth of the bus's time, so more, and so smaller ones
would only mean more calls."""


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


class _Piece(NamedTuple):
    """What goes through one segment of the ring: tiles for the kernel, and runs for DMA."""

    group_idx: int
    blocks_ptr: int
    first_tile: int
    num_tiles: int
    runs: Runs
    first_run: int
    stop_run: int


class StagedCopies(Copies):
    """One job in segments; to be enqueued before the next one of its lane is planned, since it knows its segments."""

    def __init__(self, selection: Selection, lane: Lane) -> None:
        if lane.staging is None:
            raise InternalError(f"{lane!r} has no staging")
        self._staging, self._backend, self._turns = lane.staging, lane.staging.backend, lane.turns
        self._stores = lane.direction is Direction.STORE
        # What has no stages begins where it ends: nothing would keep its end from coming before its beginning.
        self.first_stream = lane.staging.stream if selection.parts else lane.stream
        self.sources_stream = self.first_stream if self._stores and selection.parts else None
        streams = (self.first_stream, lane.stream)
        self._kernel_stream, self._dma_stream = streams if self._stores else reversed(streams)
        self._parts: list[SegmentedPart] = []
        self._runs: list[SegmentRuns] = []
        segments = 0
        for selected in selection.parts:
            part = cut_part(selection, selected, self._staging, lane.direction, segments_before=segments)
            self._parts.append(part)
            segments += len(part.ranges)
        self._num_chunks = len(selection.chunk_ids)

    def whole_chunks_before(self, run: int) -> int:
        """Chunks of which no tile lies in segment `run` or behind."""
        for part in self._parts:
            if run < len(part.ranges):
                return part.whole_chunks_before(run)
            run -= len(part.ranges)
        return self._num_chunks

    def enqueue(self, *, ordered: bool) -> Iterator[Step]:
        """One segment in each step."""
        done = 0
        try:
            for part in self._parts:
                for segments in part.slices(self._staging.max_pairs):
                    for step in self._enqueue_slice(part, segments, ordered=ordered):
                        yield step
                        done += step in (Step.DONE, Step.GAVE_WAY)
        except (OSError, OffloadError) as error:
            raise PartialCopyError(str(error), done) from error
        finally:
            if self._turns is not None:
                self._turns.rejoin(self._dma_stream)

    def _enqueue_slice(self, part: SegmentedPart, segments: range, *, ordered: bool) -> Iterator[Step]:
        ring = self._staging.descriptors
        count = sum(part.count_blocks(segment) for segment in segments)
        runs = part.runs_of(segments)
        self._runs.append(runs)
        if count > MANY_BLOCKS:
            yield Step.PREPARED
        while (pairs := ring.take(count)) is None:
            yield Step.WAITS
        try:
            part.describe(segments, pairs)
            if count > MANY_BLOCKS:
                yield Step.PREPARED
            with self._backend.session():
                blocks_ptr = ring.upload(self._kernel_stream)
            for index, segment in enumerate(segments):
                tiles = part.ranges[segment]
                piece = _Piece(
                    part.group_idx,
                    blocks_ptr,
                    part.first_tile(segment),
                    tiles.stop - tiles.start,
                    runs.runs,
                    *runs.of(index),
                )
                with self._backend.session():
                    gave_way = self._enqueue_piece(piece, ordered=ordered)
                blocks_ptr += part.count_blocks(segment) * PAIR_BYTES
                yield Step.GAVE_WAY if gave_way else Step.DONE
        finally:
            with self._backend.session():
                ring.give_back(self._kernel_stream)

    def _enqueue_piece(self, piece: _Piece, *, ordered: bool) -> bool:
        """Whatever fails, the segment is used again only after what was enqueued has ended."""
        backend, segment, dma = self._backend, self._staging.take(), self._dma_stream_for(piece)
        first, last = (self._kernel_stream, dma) if self._stores else (dma, self._kernel_stream)
        backend.wait(first, segment.emptied)
        # What a failure leaves half done here is followed, in the same stream, by whoever fills the segment next.
        if self._stores:
            self._move(piece, first)
        else:
            gave_way = self._transfer(piece, first, ordered=ordered)
        segment.filled = backend.record(first, segment.filled)
        backend.wait(last, segment.filled)
        try:
            if self._stores:
                # Out of the ring, what is read was written by the kernel before it in stream order.
                gave_way = self._transfer(piece, last, ordered=True)
            else:
                self._move(piece, last)
        finally:
            segment.emptied = backend.record(last, segment.emptied)
        return gave_way

    def _dma_stream_for(self, piece: _Piece) -> Stream:
        if self._turns is None:
            return self._dma_stream
        return self._turns.next(self._dma_stream, int(piece.runs.sizes[piece.first_run : piece.stop_run].sum()))

    def _move(self, piece: _Piece, stream: Stream) -> None:
        self._backend.move_tiles(
            piece.group_idx,
            piece.blocks_ptr,
            piece.first_tile,
            piece.num_tiles,
            to_gpu=not self._stores,
            stream=stream,
        )

    def _transfer(self, piece: _Piece, stream: Stream, *, ordered: bool) -> bool:
        return self._backend.transfer(piece.runs, piece.first_run, piece.stop_run, stream, ordered=ordered)
