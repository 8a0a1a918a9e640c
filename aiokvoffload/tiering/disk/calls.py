"""What the tier asks of the operating system for its bytes, and the points at which a crash is told from another.

A test puts itself between: it fails a call, holds it, tears it, or kills the process at a step.
"""

import enum
import os
from collections.abc import Sequence


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
    """The operating system's own calls; they block, so only threads make them."""

    def read(self, descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
        """Fill buffers from a file, as far as one call does; returns how many bytes."""
        return os.preadv(descriptor, buffers, offset)

    def write(self, descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
        """Write buffers to a file, as far as one call does; returns how many bytes."""
        return os.pwritev(descriptor, buffers, offset)

    def allocate(self, descriptor: int, size_bytes: int) -> None:
        """Reserve a file's first bytes on the device."""
        os.posix_fallocate(descriptor, 0, size_bytes)

    def reached(self, step: Step) -> None:
        """A step was passed; nothing is done about it here."""
