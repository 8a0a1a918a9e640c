"""One preallocated file of slots. Knows bytes and offsets, direct I/O and what replaces it; knows no keys."""

import contextlib
import errno
import logging
import mmap
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from aiokvoffload.cpu.common import PAGE_BYTES
from aiokvoffload.errors import TierError
from aiokvoffload.tiering.disk.calls import DiskCalls
from aiokvoffload.tiering.disk.directory import FILE_MODE
from aiokvoffload.tiering.disk.layout import padded

logger = logging.getLogger(__name__)

VectoredCall = Callable[[int, Sequence[memoryview], int], int]

_NO_DIRECT_IO = {errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP}


class TruncatedError(OSError):
    """Raised when a file ends before what was to be read from it."""


class SlotFile:
    """A file of its own size and identity, read and written past the page cache where the file system takes it.

    Args:
        path: of the file; one that is new or too short is extended.
        size_bytes: that it shall have, reserved on the device.
        identity: what its first page says; of another one's file nothing is touched.
        calls: how it is read and written.

    Attributes:
        descriptor: of the open file.
        is_direct: whether the page cache is bypassed.

    Raises:
        TierError: it cannot be opened, there is no room for it, or it is another tier's.
    """

    __slots__ = ("_calls", "descriptor", "is_direct", "path")

    def __init__(self, path: Path, size_bytes: int, identity: str, calls: DiskCalls) -> None:
        self.path, self._calls = path, calls
        is_new = not os.path.lexists(path)
        header = identity.encode().ljust(PAGE_BYTES, b"\0")
        try:
            self.descriptor, self.is_direct = _open_probed(path, header, calls)
        except OSError as error:
            raise TierError(f"{path} cannot be written: {error.strerror}") from error
        size_before_bytes = os.fstat(self.descriptor).st_size
        try:
            if size_before_bytes > size_bytes:
                os.ftruncate(self.descriptor, size_bytes)
            calls.allocate(self.descriptor, size_bytes)
        except OSError as error:
            with contextlib.suppress(OSError):  # what was reserved of it would keep the disk full
                os.ftruncate(self.descriptor, min(size_before_bytes, size_bytes))
            self.close()
            if is_new:
                path.unlink(missing_ok=True)
            raise TierError(
                f"{path}: cannot reserve {size_bytes} bytes: {error.strerror}; make room, or lower disk_bytes"
            ) from error

    def read(self, views: Sequence[memoryview], offset: int) -> None:
        """Fill buffers from padded rows, one after the other.

        Raises:
            TruncatedError: the file ends before.
            OSError: the device fails.
        """
        if not _is_done(self._calls.read, self.descriptor, views, offset):
            self._detour(views, partial(_read, self._calls, self.descriptor, offset))

    def write(self, views: Sequence[memoryview], offset: int) -> None:
        """Write buffers as padded rows, one after the other.

        Raises:
            OSError: the device fails, or is full.
        """
        if not _is_done(self._calls.write, self.descriptor, views, offset):
            self._detour(views, partial(_write, self._calls, self.descriptor, offset))

    def _detour(self, views: Sequence[memoryview], transfer: "Callable[[_Rows], None]") -> None:
        try:
            transfer(_Rows(views, aligned=True))
        except OSError as error:
            # Asking for each buffer's address costs as much as a short read; a device that minds says so.
            if error.errno != errno.EINVAL:
                raise
            transfer(_Rows(views, aligned=False))

    def probe(self) -> None:
        """Read the first page.

        Raises:
            OSError: the device fails.
        """
        self.read([memoryview(mmap.mmap(-1, PAGE_BYTES))], 0)

    def close(self) -> None:
        """Close it."""
        os.close(self.descriptor)

    def __repr__(self) -> str:
        return f"SlotFile({self.path}, {'direct' if self.is_direct else 'buffered'})"


class _Rows:
    """Buffers made fit for direct I/O: what is no whole page, or begins on none, goes through pages of our own."""

    __slots__ = ("_detours", "buffers", "num_bytes")

    def __init__(self, views: Sequence[memoryview], *, aligned: bool) -> None:
        self.buffers: list[memoryview] = []
        self._detours: list[tuple[memoryview, memoryview]] = []
        self.num_bytes = 0
        for view in views:
            size_bytes = len(view)
            rest_bytes = size_bytes % PAGE_BYTES if aligned or _begins_on_page(view) else size_bytes
            if not rest_bytes:
                self.buffers.append(view)
                self.num_bytes += size_bytes
            else:
                self._add_detour(view, size_bytes - rest_bytes)

    def _add_detour(self, view: memoryview, whole_bytes: int) -> None:
        if whole_bytes:
            self.buffers.append(view[:whole_bytes])
        rest = view[whole_bytes:]
        pages = memoryview(mmap.mmap(-1, padded(len(rest))))
        self.buffers.append(pages)
        self._detours.append((rest, pages))
        self.num_bytes += whole_bytes + len(pages)

    def copy_out(self) -> None:
        for rest, pages in self._detours:
            pages[: len(rest)] = rest

    def copy_back(self) -> None:
        for rest, pages in self._detours:
            rest[:] = pages[: len(rest)]

    def transfer(self, call: VectoredCall, descriptor: int, offset: int) -> None:
        buffers, missing = self.buffers, self.num_bytes
        while missing:
            done = call(descriptor, buffers, offset)
            if done == missing:
                return
            # Direct I/O goes on only at a page; what was moved of the page before is moved again.
            done -= done % PAGE_BYTES
            if not done:
                raise TruncatedError(errno.ENODATA, f"it ends {missing} bytes early, at offset {offset}")
            buffers, offset, missing = _without(buffers, done), offset + done, missing - done


def _is_done(call: VectoredCall, descriptor: int, views: Sequence[memoryview], offset: int) -> bool:
    """Whether one call does it all, as it does for aligned buffers of whole pages; otherwise nothing counts as done."""
    num_bytes = 0
    for view in views:
        if len(view) % PAGE_BYTES:
            return False
        num_bytes += len(view)
    try:
        return call(descriptor, views, offset) == num_bytes
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return False


def _read(calls: DiskCalls, descriptor: int, offset: int, rows: _Rows) -> None:
    rows.transfer(calls.read, descriptor, offset)
    rows.copy_back()


def _write(calls: DiskCalls, descriptor: int, offset: int, rows: _Rows) -> None:
    rows.copy_out()
    rows.transfer(calls.write, descriptor, offset)


def _without(buffers: Sequence[memoryview], num_bytes: int) -> list[memoryview]:
    left = []
    for buffer in buffers:
        if num_bytes < len(buffer):
            left.append(buffer[num_bytes:])
        num_bytes = max(0, num_bytes - len(buffer))
    return left


def _begins_on_page(view: memoryview) -> bool:
    address: int = np.frombuffer(view, np.uint8).__array_interface__["data"][0]
    return address % PAGE_BYTES == 0


def _open_probed(path: Path, header: bytes, calls: DiskCalls) -> tuple[int, bool]:
    """Open a file whose first page is `header`; whether direct I/O works is known once that page is written (fault 40).

    Raises:
        TierError: its first page is another one's.
        OSError: it cannot be opened or written.
    """
    _require_own(path, header)
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
    page = memoryview(mmap.mmap(-1, PAGE_BYTES))
    page[:] = header
    for direct in (os.O_DIRECT, 0):
        with contextlib.ExitStack() as undo:
            try:
                descriptor = os.open(path, flags | direct, FILE_MODE)
                undo.callback(os.close, descriptor)
                calls.write(descriptor, [page], 0)
            except OSError as error:
                if not direct or error.errno not in _NO_DIRECT_IO:
                    raise
                logger.warning("%s: no direct I/O (%s), so the page cache is used", path, error.strerror)
                continue
            undo.pop_all()
            return descriptor, bool(direct)
    raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))


def _require_own(path: Path, header: bytes) -> None:
    try:
        with path.open("rb") as file:
            found = file.read(PAGE_BYTES)
    except FileNotFoundError:
        return
    if found.strip(b"\0") and found != header:
        raise TierError(
            f"{path} is another tier's, or of another of this one's directories, or no file of this library: "
            "name directories in the order in which they were filled, or another one, or remove it"
        )
