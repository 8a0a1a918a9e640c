"""Staging on the host device: the same stages and the same order, on CPU memory.

It exists so that what may be used again, and when, is tested on any machine.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import cast

import numpy as np

from aiokvoffload.base import Event, Stream
from aiokvoffload.copy.host_copy import copy_fragments
from aiokvoffload.copy.staging import Mark, Runs, StagingBackend
from aiokvoffload.copy.tiles import Descriptors, TileTable
from aiokvoffload.device.base import Device


class HostStaging(StagingBackend):
    """Pieces of work on a device whose `enqueue` runs them in order.

    Args:
        device: where.
        tables: one for each group.
    """

    def __init__(self, device: Device, tables: Sequence[TileTable]) -> None:
        self._device, self.tables = device, tuple(tables)
        self._memory: list[Descriptors] = []
        self._descriptor_ptrs = (0, 0)

    def allocate(self, size_bytes: int) -> int:
        """CPU memory."""
        return self._allocate(size_bytes).ctypes.data

    def _allocate(self, size_bytes: int) -> Descriptors:
        memory = np.zeros(-(-size_bytes // 8), dtype=np.int64)
        self._memory.append(memory)
        return memory

    def allocate_descriptors(self, size_bytes: int, gpu_ptr: int) -> Descriptors:
        """CPU memory."""
        memory = self._allocate(size_bytes)
        self._descriptor_ptrs = gpu_ptr, memory.ctypes.data
        return memory

    def session(self) -> AbstractContextManager[None]:
        """Nothing to do."""
        return nullcontext()

    def upload(self, offset_bytes: int, size_bytes: int, stream: Stream) -> None:
        """Enqueue one copy."""
        dst_ptr, src_ptr = (ptr + offset_bytes for ptr in self._descriptor_ptrs)
        arrays = (np.array([number], dtype=np.int64) for number in (dst_ptr, src_ptr, size_bytes))
        self._device.enqueue(stream, partial(copy_fragments, *arrays))

    def move_tiles(
        self,
        group_idx: int,
        blocks_ptr: int,
        first_tile: int,
        count: int,
        *,
        to_gpu: bool,
        stream: Stream,
        programs: int | None = None,
    ) -> None:
        """What the kernel does, in numpy."""
        table = self.tables[group_idx]
        self._device.enqueue(stream, partial(_move_tiles, table, blocks_ptr, first_tile, count, to_gpu))

    def transfer(self, runs: Runs, start: int, stop: int, stream: Stream, *, ordered: bool) -> bool:
        """Enqueue the runs as one piece of work."""
        arrays = (array[start:stop] for array in (runs.dst_ptrs, runs.src_ptrs, runs.sizes))
        self._device.enqueue(stream, partial(copy_fragments, *arrays))
        return False

    def record(self, stream: Stream, mark: Mark | None) -> Mark:
        """A new event: those of the host are recorded once."""
        return self._device.record(stream)

    def wait(self, stream: Stream, mark: Mark | None) -> None:
        """As the device does."""
        if mark is not None:
            self._device.wait(stream, cast("Event", mark))

    def passed(self, mark: Mark) -> bool:
        """As the device says."""
        return self._device.query(cast("Event", mark))

    def abandon(self) -> None:
        """Nothing to do: whoever abandons keeps this object."""

    def close(self) -> None:
        """Let go of the memory."""
        self._memory.clear()


def _move_tiles(table: TileTable, blocks_ptr: int, first_tile: int, count: int, to_gpu: bool) -> None:
    blocks, rows = np.divmod(np.arange(first_tile, first_tile + count), len(table))
    pairs = np.empty((int(blocks[-1]) + 1, 2), dtype=np.int64)
    ends = (np.array([number], dtype=np.int64) for number in (pairs.ctypes.data, blocks_ptr, pairs.nbytes))
    copy_fragments(*ends)  # the descriptors as they are now, as the kernel would read them
    gpu_ptrs = table.rows[rows, 0] + pairs[blocks, 0] * table.rows[rows, 1]
    outside_ptrs = pairs[blocks, 1] + table.rows[rows, 2]
    dst_ptrs, src_ptrs = (gpu_ptrs, outside_ptrs) if to_gpu else (outside_ptrs, gpu_ptrs)
    copy_fragments(dst_ptrs, src_ptrs, table.rows[rows, 3])
