"""The few calls of the C library that Python does not offer, or not without holding the GIL.

Knows Linux's memory calls (mmap(2), madvise(2), mbind(2)); knows nothing of what the memory is for.
"""

import ctypes
import errno
import mmap
import os
import platform
from typing import Any

import numpy as np

HUGE_PAGE_BYTES = 2 << 20
"""Size and alignment of a transparent huge page, where pages are of 4 KiB."""
MADV_REMOVE, MADV_HUGEPAGE, MADV_POPULATE_WRITE = 9, 14, 23
_MPOL_PREFERRED = 1
_MBIND = {"x86_64": 237, "aarch64": 235}.get(platform.machine())
"""Number of the system call: the C library has no function for it."""

# ctypes and not the mmap module: its calls release the GIL, and nothing is unmapped when an object is collected.
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_MAP_FAILED = ctypes.c_void_p(-1).value
_PROT_NONE, _MAP_FIXED = 0, 0x10


def map_memory(size_bytes: int, descriptor: int = -1) -> int:
    """Map memory that begins where a huge page can.

    Args:
        size_bytes: how much.
        descriptor: of a file to be shared; without one the memory is anonymous and private.

    Returns:
        Its address.

    Raises:
        OSError: it cannot be had; nothing stays mapped.
    """
    whole_bytes = -(-size_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
    # Address space is taken first, enough to choose a beginning in it, and what is not needed of it given back.
    reserved = _map(None, whole_bytes + HUGE_PAGE_BYTES, _PROT_NONE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    address = -(-reserved // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
    flags = mmap.MAP_SHARED if descriptor >= 0 else mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    try:
        _map(address, whole_bytes, mmap.PROT_READ | mmap.PROT_WRITE, flags | _MAP_FIXED, descriptor)
    except OSError:
        unmap_memory(reserved, whole_bytes + HUGE_PAGE_BYTES)
        raise
    unmap_memory(reserved, address - reserved)
    unmap_memory(address + whole_bytes, reserved + HUGE_PAGE_BYTES - address)
    return address


def unmap_memory(address: int, size_bytes: int) -> None:
    """Unmap; takes long for big memory that has its pages."""
    if size_bytes:
        _libc.munmap(address, size_bytes)


def advise(address: int, size_bytes: int, advice: int) -> None:
    """Call madvise(2).

    Raises:
        OSError: the kernel does not know the advice, or cannot follow it.
    """
    if _libc.madvise(address, size_bytes, advice):
        raise _last_error()


def populate(address: int, size_bytes: int) -> None:
    """Give the memory all its pages, writable; holds the process's memory map for as long as it takes.

    Raises:
        OSError: there is no memory left.
    """
    try:
        advise(address, size_bytes, MADV_POPULATE_WRITE)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        touch(address, size_bytes)  # before Linux 5.14, and in sandboxes


def touch(address: int, size_bytes: int) -> None:
    """Zero a byte of each page, which is all zeros still: that makes it one. Lets the GIL go meanwhile."""
    buffer: Any = (ctypes.c_uint8 * size_bytes).from_address(address)
    pages = np.frombuffer(buffer, dtype=np.uint8)
    pages[:: mmap.PAGESIZE] = 0


def prefer_node(address: int, size_bytes: int, numa_node: int) -> None:
    """Have the pages come from a NUMA node while it has some.

    Raises:
        OSError: there is no such node, or the kernel, or a sandbox, does not let us choose.
    """
    if _MBIND is None:
        raise OSError(errno.ENOSYS, "the number of mbind(2) is not known here")
    words = numa_node // 64 + 1
    mask = (ctypes.c_uint64 * words)()
    mask[numa_node // 64] = 1 << numa_node % 64
    # The kernel takes one bit less than it is told.
    arguments = (address, size_bytes, _MPOL_PREFERRED, ctypes.addressof(mask), words * 64 + 1, 0)
    if _libc.syscall(_MBIND, *map(ctypes.c_ulong, arguments)):
        raise _last_error()


def _map(address: int | None, size_bytes: int, protection: int, flags: int, descriptor: int = -1) -> int:
    mapped = _libc.mmap(address, size_bytes, protection, flags, descriptor, 0)
    if mapped is None or mapped == _MAP_FAILED:
        raise _last_error()
    return int(mapped)


def _last_error() -> OSError:
    code = ctypes.get_errno()
    return OSError(code, os.strerror(code))
