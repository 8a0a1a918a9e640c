"""What the tier asks of the operating system for its bytes, and the points at which a crash is told from another.

A test puts itself between: it fails a call, holds it, tears it, or kills the process at a step.
"""

import enum
import logging
import os
from collections import deque
from collections.abc import Sequence

from aiokvoffload.tiering.disk.kernel_queue import READ, WRITE, KernelQueue, Piece

logger = logging.getLogger(__name__)

QUEUE_DEPTH = 64


class Step(enum.Enum):
    """Points between the data and its row, in the order in which they are passed."""

    DATA_WRITTEN = "data written"
    """A chunk's bytes lie in its slot; nothing says so yet."""
    ROWS_CHANGED = "rows changed"
    """Within the transaction that says so, and deletes the rows of others."""
    ROWS_COMMITTED = "rows committed"
    """Nobody has been told yet that it is committed."""
    SLOTS_FREED = "slots freed"
    """Slots whose rows are gone can be reserved again."""


class DiskCalls:
    """The operating system's own calls; they block, so only threads make them.

    Attributes:
        at_once: how many pieces one thread can have under way.
    """

    at_once = 1

    def open(self) -> None:
        """Find out what this system can do."""

    def close(self) -> None:
        """Give back what was opened; no call is under way any more."""

    def read(self, descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
        """Fill buffers from a file, as far as one call does; returns how many bytes."""
        return os.preadv(descriptor, buffers, offset)

    def write(self, descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
        """Write buffers to a file, as far as one call does; returns how many bytes."""
        return os.pwritev(descriptor, buffers, offset)

    def read_many(self, pieces: Sequence[Piece]) -> Sequence[bool]:
        """Read pieces of files for direct I/O at once; whether each is done. The others are to be read one by one."""
        return [False] * len(pieces)

    def write_many(self, pieces: Sequence[Piece]) -> Sequence[bool]:
        """Write pieces likewise."""
        return [False] * len(pieces)

    def allocate(self, descriptor: int, size_bytes: int) -> None:
        """Reserve a file's first bytes on the device."""
        os.posix_fallocate(descriptor, 0, size_bytes)

    def reached(self, step: Step) -> None:
        """A step was passed; nothing is done about it here."""


class QueuedCalls(DiskCalls):
    """The same, with many pieces under way for each thread where the kernel lets it."""

    def __init__(self) -> None:
        self._idle: deque[KernelQueue] = deque()

    def open(self) -> None:
        """Make the first queue, which shows whether there can be any."""
        try:
            self._idle.append(KernelQueue(QUEUE_DEPTH))
            self.at_once = QUEUE_DEPTH
        except OSError as error:
            logger.info("no asynchronous I/O here (%s): one read or write for each thread at a time", error.strerror)

    def close(self) -> None:
        """Give back all queues."""
        while self._idle:
            self._idle.pop().close()

    def read_many(self, pieces: Sequence[Piece]) -> Sequence[bool]:
        """Read pieces at once."""
        return self._move(READ, pieces)

    def write_many(self, pieces: Sequence[Piece]) -> Sequence[bool]:
        """Write pieces at once."""
        return self._move(WRITE, pieces)

    def _move(self, operation: int, pieces: Sequence[Piece]) -> Sequence[bool]:
        if len(pieces) == 1 or self.at_once == 1:
            return [False] * len(pieces)  # a single one costs less the usual way
        try:
            queue = self._idle.pop() if self._idle else KernelQueue(QUEUE_DEPTH)
        except (IndexError, OSError):  # another thread was faster, or the system has no more
            return [False] * len(pieces)
        done = queue.move(operation, pieces)
        self._idle.append(queue)
        return done

    def __repr__(self) -> str:
        return f"QueuedCalls({self.at_once} at once, {len(self._idle)} idle queues)"
