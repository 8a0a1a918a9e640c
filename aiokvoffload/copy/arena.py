"""Host memory for slots: exact, anonymous, pinned where the device can, and never unmapped under a running copy.

Knows addresses and rows; knows nothing of what the rows hold. Memory comes from `mmap` and not from torch, whose pinned
allocator rounds up to a power of two, and is registered in pieces, since one registration of some hundred GiB fails.
"""

import ctypes
import logging
import mmap
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from aiokvoffload.base import Ids
from aiokvoffload.cpu.common import PoolShape
from aiokvoffload.device.base import Device
from aiokvoffload.errors import ConfigError

logger = logging.getLogger(__name__)

PIECE_LIMIT_BYTES = 64 << 30
"""Most bytes registered in one call; 512 GiB in one call fails on CUDA 13."""

# ctypes and not the mmap module: its calls release the GIL, and nothing is unmapped when an object is collected.
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_MAP_FAILED = ctypes.c_void_p(-1).value


@dataclass(slots=True)
class MemoryUse:
    """Bytes of all arenas of this process.

    Attributes:
        mapped_bytes: mapped, and not closed or abandoned.
        pinned_bytes: the part of them that is pinned.
        abandoned_bytes: leaked for good because a copy may still touch them (I2).
    """

    mapped_bytes: int = 0
    pinned_bytes: int = 0
    abandoned_bytes: int = 0


_use = MemoryUse()
_use_lock = threading.Lock()
_kept_for_good: list[object] = []


def memory_use() -> MemoryUse:
    """A copy of the counts."""
    with _use_lock:
        return MemoryUse(_use.mapped_bytes, _use.pinned_bytes, _use.abandoned_bytes)


def keep_for_good(*objects: object) -> None:
    """Never collect `objects`: a copy that was abandoned may still touch their memory (I2)."""
    _kept_for_good.extend(objects)


class HostArena:
    """Equal rows of host memory.

    Args:
        num_rows: number of rows.
        row_bytes: bytes of each, a multiple of the page size.
        device: pins the memory.
        pin: whether to pin at all.
        piece_limit_bytes: most bytes registered in one call; pieces are whole rows.

    Attributes:
        address: of the first byte.
        size_bytes: all rows.
        pinned_bytes: `size_bytes`, or 0 where pinning was refused.
        pin_error: why it was refused.

    Raises:
        ConfigError: the memory cannot be mapped.
    """

    def __init__(
        self,
        num_rows: int,
        row_bytes: int,
        *,
        device: Device,
        pin: bool = True,
        piece_limit_bytes: int = PIECE_LIMIT_BYTES,
    ) -> None:
        self._num_rows, self._row_bytes, self._device = num_rows, row_bytes, device
        self._piece_bytes = max(1, piece_limit_bytes // row_bytes) * row_bytes
        self.size_bytes = num_rows * row_bytes
        self.address = _map(self.size_bytes)
        self.pinned_bytes = 0
        self.pin_error: OSError | None = None
        self._count(mapped=self.size_bytes)
        self._open = True
        if pin:
            try:
                self._pin()
            except BaseException:
                self.close()
                raise

    @property
    def boundaries(self) -> Ids:
        """Addresses at which a new registration begins; no single copy may run over one."""
        return np.array([address for address, _ in self._pieces()][1:], dtype=np.int64)

    def rows(self) -> npt.NDArray[np.uint8]:
        """All bytes, shape (num_rows, row_bytes). The caller must let go of it before `close`."""
        buffer: Any = (ctypes.c_uint8 * self.size_bytes).from_address(self.address)
        flat: npt.NDArray[np.uint8] = np.frombuffer(buffer, dtype=np.uint8)
        return flat.reshape(self._num_rows, self._row_bytes)

    def close(self) -> None:
        """Unpin and unmap; doing it again does nothing. Takes long for big memory: never on a loop.

        Raises:
            OSError: the device would not let go of the memory, which is then abandoned.
        """
        if not self._open:
            return
        if self.pinned_bytes:
            self._unpin(list(self._pieces()))
        self._open = False
        _libc.munmap(self.address, self.size_bytes)
        self._count(mapped=-self.size_bytes, pinned=-self.pinned_bytes)
        self.pinned_bytes = 0

    def abandon(self) -> None:
        """Leak the memory: it stays mapped and pinned until the process ends."""
        if self._open:
            self._open = False
            self._count(mapped=-self.size_bytes, pinned=-self.pinned_bytes, abandoned=self.size_bytes)

    def _pieces(self) -> Iterator[tuple[int, int]]:
        for offset in range(0, self.size_bytes, self._piece_bytes):
            yield self.address + offset, min(self._piece_bytes, self.size_bytes - offset)

    def _pin(self) -> None:
        pinned: list[tuple[int, int]] = []
        try:
            for address, size_bytes in self._pieces():
                self._device.pin(address, size_bytes)
                pinned.append((address, size_bytes))
        except BaseException as error:
            self._unpin(pinned)
            if not isinstance(error, OSError):
                raise
            self.pin_error = error
            return
        self.pinned_bytes = self.size_bytes
        self._count(pinned=self.size_bytes)

    def _unpin(self, pieces: Sequence[tuple[int, int]]) -> None:
        """Unpin; memory that the device does not let go of must stay mapped."""
        try:
            for address, size_bytes in pieces:
                self._device.unpin(address, size_bytes)
        except BaseException:
            self.abandon()
            raise

    @staticmethod
    def _count(*, mapped: int = 0, pinned: int = 0, abandoned: int = 0) -> None:
        with _use_lock:
            _use.mapped_bytes += mapped
            _use.pinned_bytes += pinned
            _use.abandoned_bytes += abandoned

    def __repr__(self) -> str:
        return f"HostArena({self._num_rows} rows of {self._row_bytes} bytes, {self.pinned_bytes} bytes pinned)"


def map_pools(pools: Sequence[PoolShape], device: Device) -> tuple[HostArena, ...]:
    """One arena for each pool. Where memory cannot be pinned, all goes on without, and one warning says so.

    Raises:
        ConfigError: the memory cannot be mapped; nothing stays mapped.
    """
    arenas: list[HostArena] = []
    pin_error: OSError | None = None
    try:
        for pool in pools:
            arena = HostArena(pool.num_slots, pool.row_bytes, device=device, pin=pin_error is None)
            arenas.append(arena)
            pin_error = pin_error or arena.pin_error
    except BaseException:
        for arena in arenas:
            arena.close()
        raise
    if pin_error is not None:
        logger.warning("CPU memory cannot be pinned, copies will be slow and block their thread: %s", pin_error)
    return tuple(arenas)


def _map(size_bytes: int) -> int:
    if size_bytes > sys.maxsize:  # the C call would take it modulo 2**64
        raise ConfigError(f"cannot map {size_bytes} bytes of CPU memory: there are at most {sys.maxsize} addresses")
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    address = _libc.mmap(None, size_bytes, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
    if address is None or address == _MAP_FAILED:
        raise ConfigError(f"cannot map {size_bytes} bytes of CPU memory: {os.strerror(ctypes.get_errno())}")
    return int(address)
