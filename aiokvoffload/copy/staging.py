"""What lies between two stages of a copy: a ring of GPU memory, and descriptors on their way to the kernel.

Knows when a part of either may be used again; knows nothing of jobs. Nothing here waits on the host: the streams wait
for each other on the device, and whoever finds no room for descriptors tries again.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from aiokvoffload.base import Ids, Stream
from aiokvoffload.copy.tiles import Descriptors, TileTable

Mark = Any
"""A place in a stream that can be recorded anew, a backend's own kind of event."""

MAX_SEGMENT_BLOCKS = 2048
BLOCK_DESCRIPTOR_BYTES = 16
SEGMENT_DESCRIPTOR_BYTES = MAX_SEGMENT_BLOCKS * BLOCK_DESCRIPTOR_BYTES
DESCRIPTOR_BYTES = 1 << 20
"""Pinned memory for descriptors under way, for each lane: some thousand blocks, in dozens of segments at least."""


class StagingBackend(ABC):
    """What staging asks of a device. Everything but the allocation only enqueues, and takes microseconds."""

    @abstractmethod
    def allocate(self, size_bytes: int) -> int:
        """Address of GPU memory, this object's until `close`.

        Raises:
            ConfigError: there is not so much.
        """

    @abstractmethod
    def allocate_host(self, size_bytes: int) -> Descriptors:
        """Pinned host memory, this object's until `close`, as int64.

        Raises:
            ConfigError: there is not so much.
        """

    @abstractmethod
    @contextmanager
    def session(self) -> Iterator[None]:
        """Inside it, this thread may enqueue."""

    @abstractmethod
    def upload(self, dst_ptr: int, src_ptr: int, size_bytes: int, stream: Stream) -> None:
        """Copy from host memory of `allocate_host` to memory of `allocate`."""

    @abstractmethod
    def move_tiles(
        self,
        group_idx: int,
        blocks_ptr: int,
        first_tile: int,
        count: int,
        *,
        to_gpu: bool,
        stream: Stream,
        programs: int | None = None,
    ) -> None:
        """Run the kernel on descriptors at `blocks_ptr` (see `TileTable.describe_blocks`), on at most `programs`."""

    @abstractmethod
    def transfer(self, dst_ptrs: Ids, src_ptrs: Ids, sizes: Ids, stream: Stream, *, ordered: bool) -> None:
        """Copy runs between memory of `allocate` and slots. The arrays must live until the copies have ended."""

    @abstractmethod
    def record(self, stream: Stream, mark: Mark | None) -> Mark:
        """Mark the end of `stream`; the old `mark` may be used for it, and is no other any more."""

    @abstractmethod
    def wait(self, stream: Stream, mark: Mark | None) -> None:
        """Make later work of `stream` wait for what was recorded last; `None` waits for nothing."""

    @abstractmethod
    def passed(self, mark: Mark) -> bool:
        """Whether everything before the mark has ended; never waits."""

    @abstractmethod
    def close(self) -> None:
        """Give all memory and marks back; all work must have ended."""

    @property
    @abstractmethod
    def tables(self) -> tuple[TileTable, ...]:
        """One for each group."""


class Segment:
    """A part of the ring, with room for the descriptors of what is in it.

    Attributes:
        address: of its memory.
        descriptors_ptr: of that room.
        filled: recorded when the first stage has filled it.
        emptied: recorded when the second stage has read it.
    """

    __slots__ = ("address", "descriptors_ptr", "emptied", "filled")

    def __init__(self, address: int, descriptors_ptr: int) -> None:
        self.address, self.descriptors_ptr = address, descriptors_ptr
        self.filled: Mark | None = None
        self.emptied: Mark | None = None


class DescriptorRing:
    """Host memory that descriptors are written to and uploaded from, used again when the upload has ended (fault 5).

    Args:
        backend: knows when.
        memory: int64, in which pairs of numbers are kept.
    """

    def __init__(self, backend: StagingBackend, memory: Descriptors) -> None:
        self._backend = backend
        self._pairs = memory.reshape(-1, 2)
        self._position = 0
        self._in_use: deque[tuple[int, Mark]] = deque()  # pairs of each upload, those skipped at the end included
        self._used = 0
        self._spare_marks: list[Mark] = []

    def take(self, count: int) -> Descriptors | None:
        """Room for `count` pairs, or `None` while there is not so much; the next call must be `uploaded`."""
        fits = self._position + count <= len(self._pairs)
        skipped = 0 if fits else len(self._pairs) - self._position
        while self._used + skipped + count > len(self._pairs):
            if not self._in_use or not self._backend.passed(self._in_use[0][1]):
                return None
            pairs, mark = self._in_use.popleft()
            self._used -= pairs
            self._spare_marks.append(mark)
        if not fits:
            self._position = 0
        self._used += skipped + count
        self._taken = skipped + count
        return self._pairs[self._position : self._position + count]

    def uploaded(self, stream: Stream, count: int) -> None:
        """What was taken last has been given to `stream`, which reads it."""
        mark = self._backend.record(stream, self._spare_marks.pop() if self._spare_marks else None)
        self._in_use.append((self._taken, mark))
        self._position += count

    def __repr__(self) -> str:
        return f"DescriptorRing({self._used} of {len(self._pairs)} pairs in use, {len(self._in_use)} uploads)"


class Staging:
    """The ring of one lane and the stream of its first stage. One thread uses it.

    Args:
        backend: makes everything; closed with this.
        stream: of the first stage.
        size_bytes: of GPU memory, at most.
        num_segments: into how many parts it is cut.

    Attributes:
        stream: of the first stage.
        segment_bytes: of each part.
        size_bytes: GPU memory in use.
        descriptors: on their way.

    Raises:
        ConfigError: the memory cannot be had.
    """

    def __init__(self, backend: StagingBackend, stream: Stream, *, size_bytes: int, num_segments: int) -> None:
        self.backend, self.stream = backend, stream
        part_bytes = size_bytes // num_segments // SEGMENT_DESCRIPTOR_BYTES * SEGMENT_DESCRIPTOR_BYTES
        self.segment_bytes = part_bytes - SEGMENT_DESCRIPTOR_BYTES
        self.size_bytes = part_bytes * num_segments
        address = backend.allocate(self.size_bytes)
        parts = range(address, address + self.size_bytes, part_bytes)
        self._segments = tuple(Segment(part + SEGMENT_DESCRIPTOR_BYTES, part) for part in parts)
        self._next = 0
        self.descriptors = DescriptorRing(backend, backend.allocate_host(DESCRIPTOR_BYTES))
        self._steps = np.arange(MAX_SEGMENT_BLOCKS, dtype=np.int64)

    def upcoming(self, count: int) -> Ids:
        """Addresses of the next `count` segments to be taken."""
        addresses = np.array([segment.address for segment in self._segments], dtype=np.int64)
        return addresses[(self._next + np.arange(count)) % len(addresses)]

    def take(self) -> Segment:
        """The next segment. Its `emptied` must be waited for before it is filled."""
        segment = self._segments[self._next]
        self._next = (self._next + 1) % len(self._segments)
        return segment

    def describe(self, pairs: Descriptors, block_ids: Ids, start: int, block_bytes: int) -> None:
        """Write descriptors of blocks that lie one behind the other from address `start` on."""
        pairs[:, 0] = block_ids
        np.multiply(self._steps[: len(pairs)], block_bytes, out=pairs[:, 1])
        pairs[:, 1] += start

    def close(self) -> None:
        """Give everything back; all work must have ended."""
        self.backend.close()

    def __repr__(self) -> str:
        return f"Staging({len(self._segments)} segments of {self.segment_bytes} bytes, {self.descriptors!r})"
