"""Host memory for slots: exact, pinned where the device can, and never unmapped under a running copy.

Knows addresses, rows and pieces; knows nothing of what the rows hold, and not when it is to grow. Memory comes from the
kernel and not from torch, whose pinned allocator rounds up to a power of two, and is registered in pieces, since one
registration of some hundred GiB fails.
"""

import ctypes
import logging
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from aiokvoffload.config import HostMemory
from aiokvoffload.copy.faulting import PageFaulter
from aiokvoffload.copy.mapping import HostMapping
from aiokvoffload.copy.memory_use import count_memory
from aiokvoffload.cpu.common import PoolShape
from aiokvoffload.device.base import Device
from aiokvoffload.errors import ConfigError, InternalError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArenaOptions:
    """How memory for slots is got.

    Attributes:
        memory: what kind of memory.
        piece_bytes: registered in one call; pieces are whole rows, one at least.
        grows: whether only a first piece is ready at once, and the others later, as they are added.
    """

    memory: HostMemory = HostMemory.ANONYMOUS
    piece_bytes: int = 16 << 20
    grows: bool = False


FILLED = ArenaOptions()
"""Anonymous memory that is ready at once."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Whole rows that become ready together.

    Attributes:
        address: of the first byte.
        size_bytes: how many.
        stop_row: the row behind the last one.
        arena: whose rows they are.
    """

    address: int
    size_bytes: int
    stop_row: int
    arena: "HostArena" = field(repr=False, compare=False)


class HostArena:
    """Equal rows of host memory.

    Args:
        num_rows: number of rows.
        row_bytes: bytes of each, a multiple of the page size.
        device: pins the memory.
        pin: whether to pin at all.
        options: how the memory is got; where it grows, no row is ready before `add`.

    Attributes:
        num_rows: as given.
        row_bytes: as given.
        size_bytes: all rows, ready or not.
        pieces: all of them, in order.
        ready_rows: leading rows that can be used.
        pinned_bytes: the part of the ready rows that is pinned: all of it, or nothing where pinning was refused.
        pin_error: why it was refused.

    Raises:
        ConfigError: the memory cannot be mapped, or there is not so much; nothing stays mapped.
    """

    def __init__(
        self,
        num_rows: int,
        row_bytes: int,
        *,
        device: Device,
        pin: bool = True,
        options: ArenaOptions = FILLED,
    ) -> None:
        self.num_rows, self.row_bytes = num_rows, row_bytes
        self._device, self._pin = device, pin
        self.size_bytes = num_rows * row_bytes
        self._mapping = HostMapping(self.size_bytes, options.memory, device.numa_node())
        self.pieces = tuple(self._cut(options.piece_bytes))
        self.ready_rows = self.pinned_bytes = 0
        self.pin_error: OSError | None = None
        self._pinned: list[Piece] = []
        self._view: memoryview | None = None
        count_memory(mapped=self.size_bytes)
        self._open = True
        if not options.grows:
            try:
                self._fill()
            except BaseException:
                self.close()
                raise

    @property
    def address(self) -> int:
        """Of the first byte."""
        return self._mapping.address

    @property
    def descriptor(self) -> int | None:
        """Of the file that the memory is, for others to map; `None` for anonymous memory."""
        return self._mapping.descriptor

    @property
    def ready_bytes(self) -> int:
        """Bytes of the ready rows."""
        return self.ready_rows * self.row_bytes

    @property
    def piece_bytes(self) -> int:
        """Bytes of each piece but the last: no single copy may run over a multiple of it, counted from the address."""
        return self.pieces[0].size_bytes

    def rows(self) -> npt.NDArray[np.uint8]:
        """All bytes, shape (num_rows, row_bytes). The caller must let go of it before `close`."""
        buffer: Any = (ctypes.c_uint8 * self.size_bytes).from_address(self.address)
        flat: npt.NDArray[np.uint8] = np.frombuffer(buffer, dtype=np.uint8)
        return flat.reshape(self.num_rows, self.row_bytes)

    def row_views(self, rows: Sequence[int], num_bytes: int) -> list[memoryview]:
        """The first bytes of each of these rows, to read and write; good until `close`."""
        if self._view is None:
            buffer: Any = (ctypes.c_uint8 * self.size_bytes).from_address(self.address)
            self._view = memoryview(buffer).cast("B")
        view, row_bytes = self._view, self.row_bytes
        return [view[row * row_bytes : row * row_bytes + num_bytes] for row in rows]

    def add(self, piece: Piece) -> None:
        """Make the next piece's rows ready; its pages are there.

        Where the device refuses to pin the first piece, it is ready all the same, and no later one is pinned.

        Raises:
            OSError: the device refuses to pin a later piece, which is not ready then.
            InternalError: it is not the next piece.
        """
        if piece.stop_row - piece.size_bytes // self.row_bytes != self.ready_rows:
            raise InternalError(f"{piece} is added to {self!r} out of turn")
        if self._pin:
            try:
                self._device.pin(piece.address, piece.size_bytes)
            except OSError as error:
                if self._pinned:
                    raise
                self._pin, self.pin_error = False, error
            else:
                self._pinned.append(piece)
                self._count_pinned(piece.size_bytes)
        self.ready_rows = piece.stop_row

    def give_back_rest(self) -> None:
        """Let go of the pages behind the ready rows: there will be no more of these."""
        self._mapping.give_back(self.ready_bytes)

    def close(self) -> None:
        """Unpin and unmap; doing it again does nothing. Takes long for big memory: never on a loop.

        Raises:
            OSError: the device would not let go of the memory, which is then abandoned.
        """
        if not self._open:
            return
        self._unpin()
        self._open = False
        self._mapping.close()
        count_memory(mapped=-self.size_bytes)

    def abandon(self) -> None:
        """Leak the memory: it stays mapped and pinned until the process ends."""
        if self._open:
            self._open = False
            self._mapping.abandon()
            count_memory(mapped=-self.size_bytes, pinned=-self.pinned_bytes, abandoned=self.size_bytes)

    def _cut(self, piece_bytes: int) -> list[Piece]:
        rows_per_piece = max(1, piece_bytes // self.row_bytes)
        pieces = []
        for row in range(0, self.num_rows, rows_per_piece):
            stop_row = min(row + rows_per_piece, self.num_rows)
            address, size_bytes = self.address + row * self.row_bytes, (stop_row - row) * self.row_bytes
            pieces.append(Piece(address, size_bytes, stop_row, self))
        return pieces

    def _fill(self) -> None:
        """Make all rows ready: pinned, or, where the device refuses one piece, without any of it pinned."""
        try:
            with PageFaulter() as faulter, closing(faulter.fault_in_turn(self.pieces)) as faulted:
                for piece in faulted:
                    self._add_or_go_on_unpinned(piece)
        except OSError as error:
            if not self._open:  # the device keeps what was pinned
                raise
            raise ConfigError(f"cannot have {self.size_bytes} bytes of CPU memory: {error.strerror}") from error

    def _add_or_go_on_unpinned(self, piece: Piece) -> None:
        try:
            self.add(piece)
        except OSError as error:
            self._unpin()
            self._pin, self.pin_error = False, error
            self.ready_rows = piece.stop_row

    def _unpin(self) -> None:
        """Unpin; memory that the device does not let go of must stay mapped."""
        try:
            for piece in self._pinned:
                self._device.unpin(piece.address, piece.size_bytes)
        except BaseException:
            self.abandon()
            raise
        self._pinned.clear()
        self._count_pinned(-self.pinned_bytes)

    def _count_pinned(self, size_bytes: int) -> None:
        self.pinned_bytes += size_bytes
        if self._open:  # a piece may be pinned while the arena is abandoned
            count_memory(pinned=size_bytes)

    def __repr__(self) -> str:
        return (
            f"HostArena({self.ready_rows} of {self.num_rows} rows of {self.row_bytes} bytes ready, "
            f"{self.pinned_bytes} bytes pinned)"
        )


def map_pools(pools: Sequence[PoolShape], device: Device, *, options: ArenaOptions = FILLED) -> tuple[HostArena, ...]:
    """One arena for each pool. Where memory cannot be pinned, all goes on without, and one warning says so.

    Args:
        pools: shapes of the pools.
        device: pins the memory.
        options: how the memory is got.

    Raises:
        ConfigError: the memory cannot be had; nothing stays mapped.
    """
    arenas: list[HostArena] = []
    pin_error: OSError | None = None
    try:
        for pool in pools:
            pin = pin_error is None
            arena = HostArena(pool.num_slots, pool.row_bytes, device=device, pin=pin, options=options)
            arenas.append(arena)
            if options.grows:
                _begin(arena)
            pin_error = pin_error or arena.pin_error
    except BaseException:
        for arena in arenas:
            arena.close()
        raise
    if pin_error is not None:
        logger.warning("CPU memory cannot be pinned, copies will be slow and block their thread: %s", pin_error)
    return tuple(arenas)


def _begin(arena: HostArena) -> None:
    first = arena.pieces[:1]
    try:
        with PageFaulter() as faulter, closing(faulter.fault_in_turn(first)) as faulted:
            for piece in faulted:
                arena.add(piece)
    except OSError as error:
        raise ConfigError(f"cannot have {first[0].size_bytes} bytes of CPU memory: {error.strerror}") from error
