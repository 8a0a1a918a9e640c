"""The operating system as a test wants it: failing, short of breath, or hanging."""

import errno
import os
import threading
from collections.abc import Callable, Sequence

from aiokvoffload.tiering.disk.calls import DiskCalls, Step

HEADER_END = 64 << 10


class ScriptedCalls(DiskCalls):
    """Passes everything on, unless something is commanded.

    Attributes:
        read_errors: by offset, what a read that covers it fails with.
        write_error: what all writes of chunks fail with.
        allocate_error: what reserving fails with.
        most_bytes: that one call moves.
        gate: reads and writes of chunks wait for it.
        begun: set once one waits.
        on_step: called at each step.
    """

    def __init__(self) -> None:
        self.read_errors: dict[int, int] = {}
        self.write_error = self.allocate_error = 0
        self.most_bytes: int | None = None
        self.gate = threading.Event()
        self.gate.set()
        self.begun = threading.Event()
        self.on_step: Callable[[Step], None] = lambda _: None
        self.reads = 0

    def read(self, descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
        self._wait(offset)
        self.reads += 1
        end = offset + sum(map(len, buffers))
        for bad, error in self.read_errors.items():
            if offset <= bad < end:
                raise OSError(error, os.strerror(error))
        return self._short(super().read(descriptor, self._cut(buffers, offset), offset), offset)

    def write(self, descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
        self._wait(offset)
        if self.write_error and offset >= HEADER_END:
            raise OSError(self.write_error, os.strerror(self.write_error))
        return self._short(super().write(descriptor, self._cut(buffers, offset), offset), offset)

    def allocate(self, descriptor: int, size_bytes: int) -> None:
        if self.allocate_error:
            raise OSError(self.allocate_error, os.strerror(self.allocate_error))
        super().allocate(descriptor, size_bytes)

    def reached(self, step: Step) -> None:
        self.on_step(step)

    def _wait(self, offset: int) -> None:
        if offset >= HEADER_END and not self.gate.is_set():
            self.begun.set()
            self.gate.wait()

    def _cut(self, buffers: Sequence[memoryview], offset: int) -> Sequence[memoryview]:
        if self.most_bytes is None or offset < HEADER_END:
            return buffers
        return [buffers[0][: -(-self.most_bytes // 4096) * 4096]]

    def _short(self, done: int, offset: int) -> int:
        return done if self.most_bytes is None or offset < HEADER_END else min(done, self.most_bytes)


class NoDirectCalls(DiskCalls):
    """A file system whose files open for direct I/O, and cannot be written then."""

    def write(self, descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
        with open(f"/proc/self/fdinfo/{descriptor}") as facts:
            flags = int(facts.read().split("flags:")[1].split()[0], 8)
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return super().write(descriptor, buffers, offset)
