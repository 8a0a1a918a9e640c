"""What I/O threads do with the chunks of one call: runs of adjacent slots, checked. Knows no states of slots."""

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from aiokvoffload.base import ChunkViews, LoadOutcome, OffloadKey
from aiokvoffload.tiering.disk.calls import DiskCalls, Step
from aiokvoffload.tiering.disk.checksum import Checksummer
from aiokvoffload.tiering.disk.io_threads import Job
from aiokvoffload.tiering.disk.layout import DiskPool
from aiokvoffload.tiering.disk.slot_file import SlotFile, TruncatedError

logger = logging.getLogger(__name__)

MAX_RUN_BYTES = 2 << 20
"""Beyond some 2 MiB a bigger call is no faster, and keeps others from the thread."""
MAX_JOB_BYTES = 2 << 20
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
        self._lock = threading.Lock()
        self._jobs_left = 0

    def jobs(self, num_threads: int, on_done: Callable[[], None]) -> Sequence[Job]:
        """Split the work among threads; the job that ends last calls `on_done`, whatever became of the chunks."""
        pool, count = self._pool, len(self.slots)
        share = max(1, min(-(-count // num_threads), MAX_JOB_BYTES // pool.slot_bytes))
        # In the order of the call: chunks that lie side by side mostly stand side by side in their chain too.
        parts = [range(start, min(start + share, count)) for start in range(0, count, share)]
        self._jobs_left = len(parts)
        return [partial(self._run, part, on_done) for part in parts]

    def _run(self, positions: range, on_done: Callable[[], None]) -> None:
        longest = max(1, min(MAX_RUN_BYTES // self._pool.slot_bytes, _MAX_BUFFERS // self._pool.num_workers))
        try:
            for run in self._pool.runs(self.slots, positions, longest):
                self._transfer_or_split(run)
        finally:
            with self._lock:
                self._jobs_left -= 1
                is_last = not self._jobs_left
            if is_last:
                on_done()

    def _transfer_or_split(self, run: Sequence[int]) -> None:
        slot = self.slots[run[0]]
        stripe = slot % self._pool.num_stripes
        try:
            self._transfer(self._files[stripe], self._pool.offset_of(slot), run)
        except OSError as error:
            if len(run) == 1:
                self._fail(run[0], error)
                logger.warning("%s, slot %d: %s", self._files[stripe].path, slot, error.strerror)
                return
            for position in run:  # one bad block must not fail its neighbours (fault 10)
                self._transfer_or_split([position])

    def _buffers(self, run: Sequence[int]) -> list[memoryview]:
        return [buffer for position in run for buffer in self._views[position]]

    @abstractmethod
    def _transfer(self, file: SlotFile, offset: int, run: Sequence[int]) -> None: ...

    @abstractmethod
    def _fail(self, position: int, error: OSError) -> None: ...


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

    def _transfer(self, file: SlotFile, offset: int, run: Sequence[int]) -> None:
        digests = [self._checksummer.digest(self.keys[position], self._views[position]) for position in run]
        file.write(self._buffers(run), offset)
        self._calls.reached(Step.DATA_WRITTEN)
        for position, digest in zip(run, digests, strict=True):
            self.checksums[position] = digest

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

    def _transfer(self, file: SlotFile, offset: int, run: Sequence[int]) -> None:
        file.read(self._buffers(run), offset)
        for position in run:
            self.outcomes[position] = LoadOutcome.LOADED if self._is_right(position) else LoadOutcome.CORRUPT

    def _is_right(self, position: int) -> bool:
        if self._expected is None:
            return True
        digest = self._checksummer.digest(self.keys[position], self._views[position])
        return digest == self._expected[position]

    def _fail(self, position: int, error: OSError) -> None:
        is_torn = isinstance(error, TruncatedError)
        self.outcomes[position] = LoadOutcome.CORRUPT if is_torn else LoadOutcome.FAILED
