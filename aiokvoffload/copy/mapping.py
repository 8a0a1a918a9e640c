"""Memory for slots as the kernel sees it: where it is mapped, who else can map it, which pages it is made of.

Knows no rows, no device, and not what has been pinned.
"""

import contextlib
import logging
import mmap
import os
import sys
from collections.abc import Iterator

from aiokvoffload.config import HostMemory
from aiokvoffload.copy import libc
from aiokvoffload.errors import ConfigError

logger = logging.getLogger(__name__)


class HostMapping:
    """A range of memory, mapped and without pages at first.

    Args:
        size_bytes: how much, exactly.
        kind: anonymous, or a file in memory.
        numa_node: where its pages should come from; `None` leaves that to the kernel.

    Attributes:
        address: of the first byte, where a huge page can begin.
        size_bytes: as given.
        descriptor: of the file, or `None` for anonymous memory.

    Raises:
        ConfigError: the memory cannot be mapped.
    """

    def __init__(self, size_bytes: int, kind: HostMemory, numa_node: int | None = None) -> None:
        if size_bytes > sys.maxsize:  # the C call would take it modulo 2**64
            raise ConfigError(f"cannot map {size_bytes} bytes of CPU memory: there are at most {sys.maxsize} addresses")
        self.size_bytes, self.descriptor = size_bytes, None
        try:
            if kind is HostMemory.MEMFD:
                self.descriptor = _open_file(size_bytes)
            self.address = libc.map_memory(size_bytes, -1 if self.descriptor is None else self.descriptor)
        except OSError as error:
            self._close_file()
            raise ConfigError(f"cannot map {size_bytes} bytes of CPU memory: {error.strerror}") from error
        self._advise(numa_node)

    def give_back(self, offset_bytes: int) -> None:
        """Let go of all pages from an offset on; the addresses stay."""
        start = self.address + -(-offset_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        size_bytes = self.address + self.size_bytes - start
        if size_bytes <= 0:
            return
        advice = mmap.MADV_DONTNEED if self.descriptor is None else libc.MADV_REMOVE
        with _what_may_fail("give memory back"):
            libc.advise(start, size_bytes, advice)

    def close(self) -> None:
        """Unmap; takes long for big memory."""
        libc.unmap_memory(self.address, self.size_bytes)
        self._close_file()

    def abandon(self) -> None:
        """Leave it mapped for good."""
        self._close_file()

    def _advise(self, numa_node: int | None) -> None:
        with _what_may_fail("use huge pages"):
            libc.advise(self.address, self.size_bytes, libc.MADV_HUGEPAGE)
        if self.descriptor is None:
            # A child made by fork shares the pages until one of both writes, and then one of both gets copies: if that
            # is this process, the device goes on with the pages of the child.
            with _what_may_fail("keep memory from children"):
                libc.advise(self.address, self.size_bytes, mmap.MADV_DONTFORK)
        if numa_node is not None:
            with _what_may_fail("choose a NUMA node"):
                libc.prefer_node(self.address, self.size_bytes, numa_node)

    def _close_file(self) -> None:
        if self.descriptor is not None:
            descriptor, self.descriptor = self.descriptor, None
            os.close(descriptor)

    def __repr__(self) -> str:
        kind = "anonymous" if self.descriptor is None else f"descriptor {self.descriptor}"
        return f"HostMapping({self.size_bytes} bytes, {kind})"


def _open_file(size_bytes: int) -> int:
    """A file that has no name, so nothing of it can be left over after a crash (fault 36)."""
    descriptor = os.memfd_create("aiokvoffload-pool", os.MFD_CLOEXEC)
    try:
        os.truncate(descriptor, size_bytes)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


@contextlib.contextmanager
def _what_may_fail(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        logger.debug("cannot %s: %s", what, error)
