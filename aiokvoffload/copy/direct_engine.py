"""Copies by a kernel that reads or writes pinned memory itself, without a stage between.

No other way is as fast for short runs of slots, but the programs that wait for the bus take the GPU from the model.
Knows descriptors; the kernel is the backend's.
"""

from collections.abc import Iterator

from aiokvoffload.copy.direction import Direction
from aiokvoffload.copy.engine import MANY_BLOCKS, Copies, CopyEngine, Lane, PartialCopyError, Step
from aiokvoffload.copy.selection import Selection
from aiokvoffload.copy.slot_runs import block_ptrs
from aiokvoffload.copy.staging import Staging
from aiokvoffload.copy.tiles import Descriptors
from aiokvoffload.errors import InternalError, OffloadError

DIRECT_PROGRAMS = 12
"""Enough to fill the bus out of GPU memory; more of them slow the model down further."""


class DirectEngine(CopyEngine):
    """The engine of scattered small slots. Uses the descriptors of a lane's staging, and none of its memory.

    Args:
        staged: opens the staging.
        programs: of the kernel.
    """

    def __init__(self, staged: CopyEngine, *, programs: int = DIRECT_PROGRAMS) -> None:
        self.name = "direct"
        self._staged, self._programs = staged, programs

    def open_staging(self, direction: Direction, size_bytes: int) -> Staging | None:
        """As the staged engine does."""
        return self._staged.open_staging(direction, size_bytes)

    def plan(self, selection: Selection, lane: Lane) -> Copies:
        """One launch for each few thousand blocks."""
        return DirectCopies(selection, lane, self._programs)


class DirectCopies(Copies):
    """One job in launches, all in the lane's own stream."""

    def __init__(self, selection: Selection, lane: Lane, programs: int) -> None:
        if lane.staging is None:
            raise InternalError(f"{lane!r} has no staging")
        self._selection, self._staging, self._programs = selection, lane.staging, programs
        self._to_gpu = lane.direction is Direction.LOAD
        self.first_stream = lane.stream
        self._pieces = [
            (part, start, min(start + self._staging.max_pairs, part.blocks.stop - part.blocks.start))
            for part in selection.parts
            for start in range(0, part.blocks.stop - part.blocks.start, self._staging.max_pairs)
        ]

    def whole_chunks_before(self, run: int) -> int:
        """Chunks of which no block lies in launch `run` or behind."""
        if run >= len(self._pieces):
            return len(self._selection.chunk_ids)
        part, start, _ = self._pieces[run]
        return int(part.chunks.start) + (part.skipped_blocks + start) // part.route.blocks_per_chunk

    def enqueue(self, *, ordered: bool) -> Iterator[Step]:
        """One launch in each step, behind one that only describes where its blocks are many.

        A kernel reads in stream order anyway.
        """
        for number, (part, start, stop) in enumerate(self._pieces):
            while (pairs := self._staging.descriptors.take(stop - start)) is None:
                yield Step.WAITS
            offset = part.blocks.start
            pairs[:, 0] = self._selection.block_ids[offset + start : offset + stop]
            pairs[:, 1] = block_ptrs(self._selection, part)[start:stop]
            if stop - start > MANY_BLOCKS:
                yield Step.PREPARED
            try:
                self._launch(part.route.group_idx, pairs)
            except (OSError, OffloadError) as error:
                raise PartialCopyError(str(error), number) from error
            yield Step.DONE

    def _launch(self, group_idx: int, pairs: Descriptors) -> None:
        backend, ring, stream = self._staging.backend, self._staging.descriptors, self.first_stream
        count = len(pairs) * len(backend.tables[group_idx])
        with backend.session():
            try:
                blocks_ptr = ring.upload(stream)
                to_gpu, programs = self._to_gpu, self._programs
                backend.move_tiles(group_idx, blocks_ptr, 0, count, to_gpu=to_gpu, stream=stream, programs=programs)
            finally:
                ring.give_back(stream)
