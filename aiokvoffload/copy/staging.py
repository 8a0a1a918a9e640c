"""What lies between two stages of a copy: a ring of GPU memory, and descriptors on their way to the kernel.

Knows when a part of either may be used again; knows nothing of jobs. Nothing here waits on the host: the streams wait
for each other on the device, and whoever finds no room for descriptors tries again.
"""

from abc import ABC, abstractmethod
from collections import deque
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from aiokvoffload.base import Ids, Stream
from aiokvoffload.copy.tiles import Descriptors, TileTable

Mark = Any
"""A place in a stream that can be recorded anew, a backend's own kind of event."""

MAX_PAIRS = 4096
"""Most descriptors, one for each block of a segment, that are uploaded at once."""
PAIR_BYTES = 16
UPLOAD_BYTES = 2048
"""Descriptors are uploaded in multiples of this."""
UPLOAD_PAIRS = UPLOAD_BYTES // PAIR_BYTES
DESCRIPTOR_BYTES = 1 << 20
"""Room for descriptors under way, in pinned memory and in the staging memory of each lane."""
ALIGNMENT_BYTES = 1 << 12


class Runs:
    """Copies between the ring and slots. The arrays must live until the copies have ended.

    Attributes:
        dst_ptrs: int64 addresses to write.
        src_ptrs: int64 addresses to read.
        sizes: bytes of each run.
        addresses: of the three arrays.
    """

    __slots__ = ("addresses", "dst_ptrs", "sizes", "src_ptrs")

    def __init__(self, dst_ptrs: Ids, src_ptrs: Ids, sizes: Ids) -> None:
        self.dst_ptrs, self.src_ptrs, self.sizes = dst_ptrs, src_ptrs, sizes
        # Asked for once: numpy makes an object for each question.
        self.addresses: tuple[int, int, int] = (dst_ptrs.ctypes.data, src_ptrs.ctypes.data, sizes.ctypes.data)


class StagingBackend(ABC):
    """What staging asks of a device. Everything but the allocation only enqueues, and takes microseconds.

    Attributes:
        tables: one for each group.
    """

    tables: tuple[TileTable, ...]

    @abstractmethod
    def allocate(self, size_bytes: int) -> int:
        """Address of GPU memory, this object's until `close`.

        Raises:
            ConfigError: there is not so much.
        """

    @abstractmethod
    def allocate_descriptors(self, size_bytes: int, gpu_ptr: int) -> Descriptors:
        """Host memory that the GPU can read, as int64, whose place in GPU memory is at `gpu_ptr`; once.

        Raises:
            ConfigError: there is not so much.
        """

    @abstractmethod
    def session(self) -> AbstractContextManager[None]:
        """Inside it, this thread may enqueue."""

    @abstractmethod
    def upload(self, offset_bytes: int, size_bytes: int, stream: Stream) -> None:
        """Copy descriptors to their place, both in multiples of `UPLOAD_BYTES`.

        Not by DMA: that would queue behind every copy into the GPU that has been enqueued before, whatever the stream.
        """

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
        """Run the kernel on descriptors at `blocks_ptr` (see `kernels.move_tiles`), on at most `programs`."""

    @abstractmethod
    def transfer(self, runs: Runs, start: int, stop: int, stream: Stream, *, ordered: bool) -> bool:
        """Copy runs `start` to `stop`; returns whether that gave up the GIL for long."""

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

    @abstractmethod
    def abandon(self) -> None:
        """Leave all memory where it is, mapped and pinned (I2)."""


class Segment:
    """A part of the ring.

    Attributes:
        address: of its memory.
        filled: recorded when the first stage has filled it.
        emptied: recorded when the second stage has read it.
    """

    __slots__ = ("address", "emptied", "filled")

    def __init__(self, address: int) -> None:
        self.address = address
        self.filled: Mark | None = None
        self.emptied: Mark | None = None


class DescriptorRing:
    """Room that descriptors are written to, uploaded from and read from, used again after their last reader (fault 5).

    Args:
        backend: knows when that is.
        memory: int64 on the host, in which pairs of numbers are kept.
        gpu_ptr: address of as much GPU memory.
    """

    def __init__(self, backend: StagingBackend, memory: Descriptors, gpu_ptr: int) -> None:
        self._backend, self._gpu_ptr = backend, gpu_ptr
        self._pairs = memory.reshape(-1, 2)
        self._start = self._position = self._taken = self._used = 0
        self._in_use: deque[tuple[int, Mark]] = deque()  # pairs taken, those skipped at the end included
        self._spare_marks: list[Mark] = []

    def take(self, count: int) -> Descriptors | None:
        """Room for `count` pairs, or `None` while there is not so much; then comes `upload`, then `give_back`."""
        room = -(-count // UPLOAD_PAIRS) * UPLOAD_PAIRS
        fits = self._position + room <= len(self._pairs)
        taken = room if fits else room + len(self._pairs) - self._position
        while self._used + taken > len(self._pairs):
            if not self._in_use or not self._backend.passed(self._in_use[0][1]):
                return None
            pairs, mark = self._in_use.popleft()
            self._used -= pairs
            self._spare_marks.append(mark)
        start = self._position if fits else 0
        self._start, self._position, self._taken = start, start + room, taken
        self._used += taken
        return self._pairs[start : start + count]

    def upload(self, stream: Stream) -> int:
        """Enqueue the copy of what was taken last; returns its address in GPU memory."""
        self._backend.upload(self._start * PAIR_BYTES, (self._position - self._start) * PAIR_BYTES, stream)
        return self._gpu_ptr + self._start * PAIR_BYTES

    def give_back(self, stream: Stream) -> None:
        """What was taken last has its last reader in `stream`."""
        mark = self._backend.record(stream, self._spare_marks.pop() if self._spare_marks else None)
        self._in_use.append((self._taken, mark))

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
        descriptor_bytes = min(DESCRIPTOR_BYTES, size_bytes // 2 // ALIGNMENT_BYTES * ALIGNMENT_BYTES)
        self.segment_bytes = (size_bytes - descriptor_bytes) // num_segments // ALIGNMENT_BYTES * ALIGNMENT_BYTES
        self.size_bytes = descriptor_bytes + self.segment_bytes * num_segments
        self.max_pairs = min(MAX_PAIRS, descriptor_bytes // PAIR_BYTES // 4)
        try:
            address = backend.allocate(self.size_bytes)
            self.descriptors = DescriptorRing(backend, backend.allocate_descriptors(descriptor_bytes, address), address)
        except BaseException:
            backend.close()
            raise
        first = address + descriptor_bytes
        self._segments = tuple(Segment(first + index * self.segment_bytes) for index in range(num_segments))
        self._addresses = np.array([segment.address for segment in self._segments], dtype=np.int64)
        self._next = 0

    def upcoming(self, count: int) -> Ids:
        """Addresses of the next `count` segments to be taken."""
        return self._addresses[(self._next + np.arange(count)) % len(self._addresses)]

    def take(self) -> Segment:
        """The next segment. Its `emptied` must be waited for before it is filled."""
        segment = self._segments[self._next]
        self._next = (self._next + 1) % len(self._segments)
        return segment

    def close(self) -> None:
        """Give everything back; all work must have ended."""
        self.backend.close()

    def abandon(self) -> None:
        """Leave everything where it is: the caller keeps this object for good (I2)."""
        self.backend.abandon()

    def __repr__(self) -> str:
        return f"Staging({len(self._segments)} segments of {self.segment_bytes} bytes, {self.descriptors!r})"
