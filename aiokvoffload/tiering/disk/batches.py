"""What I/O threads do with the chunks of one call: runs of adjacent slots, checked. Knows no states of slots."""

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from itertools import compress
from operator import not_
from typing import NamedTuple

from aiokvoffload.base import ChunkViews, LoadOutcome, OffloadKey
from aiokvoffload.cache.pool import Held
from aiokvoffload.cpu.common import PAGE_BYTES
from aiokvoffload.tiering.disk.calls import DiskCalls, Step
from aiokvoffload.tiering.disk.checksum import Checksummer
from aiokvoffload.tiering.disk.io_threads import Job
from aiokvoffload.tiering.disk.kernel_queue import Piece
from aiokvoffload.tiering.disk.layout import DiskPool
from aiokvoffload.tiering.disk.slot_file import SlotFile, TruncatedError

logger = logging.getLogger(__name__)

MAX_RUN_BYTES = 2 << 20
"""Beyond some 2 MiB a bigger call is no faster, and keeps others from the thread."""
MAX_JOB_BYTES = 2 << 20
_QUEUED_JOB_BYTES = 1 << 20
"""For a thread that can have several pieces under way: less is not worth the waking of another, which then waits for
the GIL among those that want it; with more the GIL is held longer for checksums, for which the loop waits."""
_QUEUED_JOB_CHUNKS = 2
"""At least, as far as they are no more than `MAX_JOB_BYTES`: the device has work while a thread computes checksums."""
_MAX_BUFFERS = 512
"""In one call: half of what Linux takes (IOV_MAX), since a row may take two."""


class PoolStorage(NamedTuple):
    """One pool's slots: where they are, its file in each directory, and how their bytes are checked and moved."""

    pool: DiskPool
    files: Sequence[SlotFile]
    checksummer: Checksummer
    calls: DiskCalls


class ChunkBatch(ABC):
    """The chunks of one call that lie in one pool.

    Args:
        storage: of that pool.
        slots: of each chunk.
        keys: of each chunk.
        views: of each chunk, a buffer per worker.

    Attributes:
        slots: as given.
        keys: as given.
    """

    def __init__(
        self, storage: PoolStorage, slots: Sequence[int], keys: Sequence[OffloadKey], views: Sequence[ChunkViews]
    ) -> None:
        self.slots, self.keys = slots, keys
        self._views = views
        self._pool, self._files, self._checksummer, self._calls = storage
        self._is_queued = (
            self._calls.at_once > 1
            and not self._pool.chunk_bytes % PAGE_BYTES  # otherwise rows are padded on their way
            and all(file.is_direct for file in self._files)
        )
        self._lock = threading.Lock()
        self._jobs_left = 0

    def jobs(self, num_threads: int, on_done: Callable[[], None]) -> Sequence[Job]:
        """Split the work among threads; the job that ends last calls `on_done`, whatever became of the chunks."""
        pool, count = self._pool, len(self.slots)
        least = max(_QUEUED_JOB_CHUNKS, _QUEUED_JOB_BYTES // pool.slot_bytes) if self._is_queued else 1
        share = max(-(-count // num_threads), least)
        share = max(1, min(share, MAX_JOB_BYTES // pool.slot_bytes))
        # In the order of the call: chunks that lie side by side mostly stand side by side in their chain too.
        parts = [range(start, min(start + share, count)) for start in range(0, count, share)]
        self._jobs_left = len(parts)
        return [partial(self._run, part, on_done) for part in parts]

    def _run(self, positions: range, on_done: Callable[[], None]) -> None:
        longest = max(1, min(MAX_RUN_BYTES // self._pool.slot_bytes, _MAX_BUFFERS // self._pool.num_workers))
        try:
            self._begin(positions)
            runs = self._pool.runs(self.slots, positions, longest)
            moved = self._move_at_once(runs) if self._is_queued else [False] * len(runs)
            if any(moved):
                self._complete([position for run in compress(runs, moved) for position in run])
            for run in compress(runs, map(not_, moved)):
                self._move_or_split(run)
        finally:
            with self._lock:
                self._jobs_left -= 1
                is_last = not self._jobs_left
            if is_last:
                on_done()

    def _move_at_once(self, runs: Sequence[Sequence[int]]) -> Sequence[bool]:
        """Move what can be moved at once; which runs were."""
        slots, num_stripes = [self.slots[run[0]] for run in runs], self._pool.num_stripes
        descriptors = [file.descriptor for file in self._files]
        pieces = [
            Piece(descriptors[slot % num_stripes], self._buffers(run), offset)
            for run, slot, offset in zip(runs, slots, self._pool.offsets_of(slots), strict=True)
        ]
        return self._move_many(pieces)

    def _move_or_split(self, run: Sequence[int]) -> None:
        slot = self.slots[run[0]]
        file = self._files[slot % self._pool.num_stripes]
        try:
            self._move(file, self._buffers(run), self._pool.offset_of(slot))
        except OSError as error:
            if len(run) == 1:
                self._fail(run[0], error)
                logger.warning("%s, slot %d: %s", file.path, slot, error.strerror)
                return
            for position in run:  # one bad block must not fail its neighbours (fault 10)
                self._move_or_split([position])
        else:
            self._complete(run)

    def _buffers(self, run: Sequence[int]) -> Sequence[memoryview]:
        if len(run) == 1:
            return self._views[run[0]]
        return [buffer for position in run for buffer in self._views[position]]

    def _digests_of(self, positions: Sequence[int]) -> Sequence[bytes]:
        views = [self._views[position] for position in positions]
        return self._checksummer.digests([self.keys[position] for position in positions], views)

    @abstractmethod
    def _begin(self, positions: Sequence[int]) -> None:
        """What is to be done before anything is moved."""

    @abstractmethod
    def _move_many(self, pieces: Sequence[Piece]) -> Sequence[bool]: ...

    @abstractmethod
    def _move(self, file: SlotFile, buffers: Sequence[memoryview], offset: int) -> None: ...

    @abstractmethod
    def _complete(self, positions: Sequence[int]) -> None:
        """These chunks were moved."""

    @abstractmethod
    def _fail(self, position: int, error: OSError) -> None:
        """This one could not be moved."""


class StoreBatch(ChunkBatch):
    """Chunks on their way to disk.

    Attributes:
        checksums: of each chunk, once it is written; `None` until then, and for those that could not be.
    """

    def __init__(
        self, storage: PoolStorage, slots: Sequence[int], keys: Sequence[OffloadKey], views: Sequence[ChunkViews]
    ) -> None:
        super().__init__(storage, slots, keys, views)
        self.checksums: list[bytes | None] = [None] * len(keys)
        self._digests: list[bytes] = [b""] * len(keys)

    def written(self) -> tuple[Held, Sequence[bytes], Sequence[OffloadKey]]:
        """The slots and keys of chunks that are written, their checksums, and the keys of the others."""
        checksums = [checksum for checksum in self.checksums if checksum is not None]
        if len(checksums) == len(self.keys):
            return Held(self.slots, self.keys), checksums, ()
        is_there = [checksum is not None for checksum in self.checksums]
        written = Held(list(compress(self.slots, is_there)), list(compress(self.keys, is_there)))
        return written, checksums, list(compress(self.keys, map(not_, is_there)))

    def _begin(self, positions: Sequence[int]) -> None:
        digests = self._digests_of(positions)
        for position, digest in zip(positions, digests, strict=True):
            self._digests[position] = digest

    def _move_many(self, pieces: Sequence[Piece]) -> Sequence[bool]:
        return self._calls.write_many(pieces)

    def _move(self, file: SlotFile, buffers: Sequence[memoryview], offset: int) -> None:
        file.write(buffers, offset)

    def _complete(self, positions: Sequence[int]) -> None:
        self._calls.reached(Step.DATA_WRITTEN)
        for position in positions:
            self.checksums[position] = self._digests[position]

    def _fail(self, position: int, error: OSError) -> None:
        self.checksums[position] = None


class LoadBatch(ChunkBatch):
    """Chunks on their way from disk.

    Args:
        storage: of the pool in which they lie.
        slots: of each chunk.
        keys: of each chunk.
        views: of each chunk, a buffer per worker.
        expected: the checksum of each chunk; without them nothing is checked.

    Attributes:
        outcomes: of each chunk, once it is read.
    """

    def __init__(
        self,
        storage: PoolStorage,
        slots: Sequence[int],
        keys: Sequence[OffloadKey],
        views: Sequence[ChunkViews],
        *,
        expected: Sequence[bytes] | None,
    ) -> None:
        super().__init__(storage, slots, keys, views)
        self.outcomes = [LoadOutcome.FAILED] * len(keys)
        self._expected = expected

    def _begin(self, positions: Sequence[int]) -> None:
        pass

    def _move_many(self, pieces: Sequence[Piece]) -> Sequence[bool]:
        return self._calls.read_many(pieces)

    def _move(self, file: SlotFile, buffers: Sequence[memoryview], offset: int) -> None:
        file.read(buffers, offset)

    def _complete(self, positions: Sequence[int]) -> None:
        outcomes, expected = self.outcomes, self._expected
        if expected is None:
            for position in positions:
                outcomes[position] = LoadOutcome.LOADED
            return
        for position, digest in zip(positions, self._digests_of(positions), strict=True):
            is_right = digest == expected[position]
            outcomes[position] = LoadOutcome.LOADED if is_right else LoadOutcome.CORRUPT

    def _fail(self, position: int, error: OSError) -> None:
        is_torn = isinstance(error, TruncatedError)
        self.outcomes[position] = LoadOutcome.CORRUPT if is_torn else LoadOutcome.FAILED
