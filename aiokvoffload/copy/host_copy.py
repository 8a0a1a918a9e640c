"""Many small copies within this process, without the interpreter between them.

Knows addresses. A loop over `memmove` takes and gives the GIL for every fragment, which slows the copies and, worse,
whoever wants the GIL meanwhile: an event loop. The kernel copies a thousand fragments in one call that holds no GIL.
"""

import ctypes
import os

import numpy as np

from aiokvoffload.base import Ids

_MAX_VECTOR = 1024
"""`IOV_MAX`: entries that one call takes."""

_libc = ctypes.CDLL(None, use_errno=True)
_readv = getattr(_libc, "process_vm_readv", None)  # Linux; elsewhere it is missing
if _readv is not None:
    _readv.restype = ctypes.c_ssize_t
    _vector = (ctypes.c_void_p, ctypes.c_ulong)
    _readv.argtypes = (ctypes.c_int, *_vector, *_vector, ctypes.c_ulong)


def copy_fragments(dst_ptrs: Ids, src_ptrs: Ids, sizes: Ids) -> None:
    """Copy `sizes[i]` bytes from `src_ptrs[i]` to `dst_ptrs[i]`, for every i; no two may overlap.

    Blocks the calling thread until all bytes are there. Source: process_vm_readv(2), on the process itself.
    """
    for start in range(0, len(sizes), _MAX_VECTOR):
        piece = slice(start, start + _MAX_VECTOR)
        if not _copy_in_kernel(dst_ptrs[piece], src_ptrs[piece], sizes[piece]):
            _copy_one_by_one(dst_ptrs[piece], src_ptrs[piece], sizes[piece])


def _copy_in_kernel(dst_ptrs: Ids, src_ptrs: Ids, sizes: Ids) -> bool:
    """Whether it was done: a sandbox may forbid the call, and one call moves at most 2 GiB."""
    if _readv is None:
        return False
    local, remote = (np.stack((ptrs, sizes), axis=1) for ptrs in (dst_ptrs, src_ptrs))
    count = len(sizes)
    copied: int = _readv(os.getpid(), local.ctypes.data, count, remote.ctypes.data, count, 0)
    return copied == int(sizes.sum())


def _copy_one_by_one(dst_ptrs: Ids, src_ptrs: Ids, sizes: Ids) -> None:
    for dst_ptr, src_ptr, size in zip(dst_ptrs.tolist(), src_ptrs.tolist(), sizes.tolist(), strict=True):
        ctypes.memmove(dst_ptr, src_ptr, size)
