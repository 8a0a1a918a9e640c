"""Many reads or writes in one call: Linux's asynchronous I/O, io_submit(2). Knows addresses and offsets, no slots.

A thread that makes a call for each of many small transfers has to get the GIL back after each, among others that want
it; here it does so twice for all of them. It goes through libc's `syscall`, since the library for these calls (libaio)
is seldom there. io_uring has more to offer, but containers forbid it, and its rings need memory barriers.

A process that is killed ends its transfers before it lets go of its files' locks.
"""

import ctypes
import errno
import os
import struct
import sys
from collections.abc import Sequence
from typing import NamedTuple


class _Numbers(NamedTuple):
    """Of the system calls, which are the processor's own."""

    setup: int
    destroy: int
    submit: int
    get_events: int


class Piece(NamedTuple):
    """One read or write: buffers that follow one another in a file."""

    descriptor: int
    buffers: Sequence[memoryview]
    offset: int


_NUMBERS = {"x86_64": _Numbers(206, 207, 209, 208), "aarch64": _Numbers(0, 1, 2, 4)}
READ, WRITE = 7, 8
"""Vectored, at an offset: IOCB_CMD_PREADV and IOCB_CMD_PWRITEV of linux/aio_abi.h."""
# As linux/aio_abi.h has them, little-endian.
_CONTROL_BLOCK = struct.Struct("<QIiHhiQQqQII")
_VECTOR = struct.Struct("<QQ")
_EVENT = struct.Struct("<QQqq")
_POINTER_BYTES = 8

_system_call = ctypes.CDLL(None, use_errno=True).syscall
_system_call.restype = ctypes.c_long
_long = ctypes.c_long


class KernelQueue:
    """Transfers of one thread at a time.

    Args:
        depth: most transfers under way.

    Raises:
        OSError: this kernel, or what confines the process, does not let it.
    """

    __slots__ = ("_blocks", "_blocks_address", "_context", "_events", "_numbers", "_pointers", "depth")

    def __init__(self, depth: int) -> None:
        numbers = _NUMBERS.get(os.uname().machine)
        if numbers is None or sys.byteorder != "little" or sys.maxsize < 1 << 32:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        self.depth, self._numbers = depth, numbers
        self._blocks = ctypes.create_string_buffer(depth * _CONTROL_BLOCK.size)
        self._events = ctypes.create_string_buffer(depth * _EVENT.size)
        first = ctypes.addressof(self._blocks)
        self._pointers = (ctypes.c_uint64 * depth)(*(first + index * _CONTROL_BLOCK.size for index in range(depth)))
        context = ctypes.c_ulong(0)
        if _system_call(_long(numbers.setup), _long(depth), ctypes.byref(context)) < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        self._context = _long(context.value)

    def move(self, operation: int, pieces: Sequence[Piece]) -> list[bool]:
        """Do them all, and say of each whether it was wholly done; of the others nothing is known.

        Args:
            operation: `READ` or `WRITE`.
            pieces: in any order; buffers that can be read only are not moved.
        """
        done: list[bool] = []
        for start in range(0, len(pieces), self.depth):
            done += self._move(operation, pieces[start : start + self.depth])
        return done

    def close(self) -> None:
        """Give it back; returns once nothing is under way."""
        _system_call(_long(self._numbers.destroy), self._context)

    def _move(self, operation: int, pieces: Sequence[Piece]) -> list[bool]:
        buffers = [buffer for piece in pieces for buffer in piece.buffers]
        try:
            # Their memory stays where it is as long as these live.
            exports = list(map(ctypes.c_char.from_buffer, buffers))
        except TypeError:  # one is read-only, and its address not to be had this way
            return [False] * len(pieces)
        vectors = bytearray(len(buffers) * _VECTOR.size)
        for index, (export, buffer) in enumerate(zip(exports, buffers, strict=True)):
            _VECTOR.pack_into(vectors, index * _VECTOR.size, ctypes.addressof(export), buffer.nbytes)
        vectors_export = ctypes.c_char.from_buffer(vectors)
        self._fill(operation, pieces, ctypes.addressof(vectors_export))
        sizes = [sum(buffer.nbytes for buffer in piece.buffers) for piece in pieces]
        try:
            results = self._wait(self._submit(len(pieces)))
        except BaseException:
            self.close()  # which waits: the device must not touch buffers that others have by now (I2)
            raise
        return [results.get(index) == size for index, size in enumerate(sizes)]

    def _fill(self, operation: int, pieces: Sequence[Piece], vectors: int) -> None:
        for index, (descriptor, buffers, offset) in enumerate(pieces):
            fields = (index, 0, 0, operation, 0, descriptor, vectors, len(buffers), offset, 0, 0, 0)
            _CONTROL_BLOCK.pack_into(self._blocks, index * _CONTROL_BLOCK.size, *fields)
            vectors += len(buffers) * _VECTOR.size

    def _submit(self, count: int) -> int:
        """Begin the first `count` transfers; returns how many have begun."""
        begun = looked_at = 0
        pointers = ctypes.addressof(self._pointers)
        while looked_at < count:
            rest = ctypes.c_void_p(pointers + looked_at * _POINTER_BYTES)
            taken = _system_call(_long(self._numbers.submit), self._context, _long(count - looked_at), rest)
            begun += max(0, taken)
            looked_at += max(1, taken)  # one that was refused is not tried again
        return begun

    def _wait(self, count: int) -> dict[int, int]:
        """Wait for so many transfers; returns the bytes of each, or an error's number below zero."""
        results: dict[int, int] = {}
        while left := count - len(results):
            number, events = _long(self._numbers.get_events), ctypes.byref(self._events)
            ended = _system_call(number, self._context, _long(left), _long(left), events, None)
            if ended < 0 and ctypes.get_errno() != errno.EINTR:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
            found = memoryview(self._events)[: max(0, ended) * _EVENT.size]
            results |= {index: result for index, _, result, _ in _EVENT.iter_unpack(found)}
        return results

    def __repr__(self) -> str:
        return f"KernelQueue({self.depth} transfers at most)"
