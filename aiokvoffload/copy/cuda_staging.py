"""Staging on CUDA: the tile kernel and the driver's copies, enqueued with as little Python as there can be."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
import torch

from aiokvoffload.base import Stream
from aiokvoffload.copy.arena import HostArena
from aiokvoffload.copy.staging import PAIR_BYTES, UPLOAD_BYTES, Mark, Runs, StagingBackend
from aiokvoffload.copy.tile_kernel import TileKernel
from aiokvoffload.copy.tiles import Descriptors, KernelShape, TileTable
from aiokvoffload.cpu.common import PAGE_BYTES
from aiokvoffload.device.base import Device
from aiokvoffload.device.driver import CudaDriver, stream_handle
from aiokvoffload.device.quick_driver import QuickDriver
from aiokvoffload.errors import ConfigError

POINTER_BYTES = 8
UPLOAD_SHAPE = KernelShape(UPLOAD_BYTES // 8, 1, 8, 16)
"""One tile for each program: what counts here is the latency of the bus."""
FEW_RUNS = 16
"""Copies that are enqueued in some ten microseconds; more of them give up the GIL."""


@dataclass(frozen=True, slots=True)
class TableOnGpu:
    """One group's table, and the kernel that suits it."""

    table: TileTable
    tensor: torch.Tensor
    kernel: TileKernel


class CudaStaging(StagingBackend):
    """What one lane enqueues with; one thread uses it.

    Args:
        device: whose memory it is.
        driver: for calls that may take longer.
        tables: one for each group.
        upload_kernel: compiled for `UPLOAD_SHAPE`.
        programs: of the kernel, at most.
    """

    def __init__(
        self,
        device: Device,
        driver: CudaDriver,
        tables: Sequence[TableOnGpu],
        *,
        upload_kernel: TileKernel,
        programs: int,
    ) -> None:
        self._device, self._driver, self._programs = device, driver, programs
        self._tables_on_gpu = tuple(tables)
        self.tables = tuple(each.table for each in tables)
        self._quick = QuickDriver(device.torch_device.index)
        self._tensors: list[torch.Tensor] = []
        self._arenas: list[HostArena] = []
        self._upload_kernel = upload_kernel
        self._upload_ptrs = (0, 0)
        self._events: list[int] = []

    def allocate(self, size_bytes: int) -> int:
        """GPU memory, from torch's allocator."""
        try:
            tensor = torch.empty(size_bytes, dtype=torch.uint8, device=self._device.torch_device)
        except torch.OutOfMemoryError as error:
            raise ConfigError(f"staging_bytes: {size_bytes} bytes of GPU memory cannot be had: {error}") from error
        self._tensors.append(tensor)
        return tensor.data_ptr()

    def allocate_descriptors(self, size_bytes: int, gpu_ptr: int) -> Descriptors:
        """Pinned memory, and a table that makes the kernel copy it: to the kernel, a tile of it lies in row 0."""
        arena = HostArena(-(-size_bytes // PAGE_BYTES), PAGE_BYTES, device=self._device)
        self._arenas.append(arena)
        if not arena.pinned_bytes:
            raise ConfigError(f"staging: {size_bytes} bytes for descriptors cannot be pinned: {arena.pin_error}")
        offsets = np.arange(0, size_bytes, UPLOAD_BYTES)
        rows = np.stack((arena.address + offsets, 0 * offsets, offsets, 0 * offsets + UPLOAD_BYTES), axis=1)
        pair_and_rows = np.concatenate(([0, gpu_ptr], rows.ravel()))
        tensor = torch.from_numpy(pair_and_rows).to(self._device.torch_device)
        self._tensors.append(tensor)
        self._upload_ptrs = tensor.data_ptr(), tensor.data_ptr() + PAIR_BYTES
        return arena.rows().reshape(-1).view("int64")

    def session(self) -> AbstractContextManager[None]:
        """Make the device's context current."""
        return self._quick.session

    def upload(self, offset_bytes: int, size_bytes: int, stream: Stream) -> None:
        """Launch the kernel on pinned memory: a few microseconds of a few programs."""
        first, count = offset_bytes // UPLOAD_BYTES, size_bytes // UPLOAD_BYTES
        pair_ptr, table_ptr = self._upload_ptrs
        programs = -(-count // UPLOAD_SHAPE.tiles_at_once)
        numbers = (1 << 30, first, count, 0)
        function, handle = self._upload_kernel.function, stream_handle(stream)
        self._quick.launch(function, programs, handle, blocks=pair_ptr, table=table_ptr, numbers=numbers)

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
        """Launch the kernel."""
        each = self._tables_on_gpu[group_idx]
        kernel, table = each.kernel, each.table
        self._quick.launch(
            kernel.function,
            min(programs or self._programs, -(-count // kernel.shape.tiles_at_once)),
            stream_handle(stream),
            blocks=blocks_ptr,
            table=each.tensor.data_ptr(),
            numbers=(len(table), first_tile, count, int(to_gpu)),
        )

    def transfer(self, runs: Runs, start: int, stop: int, stream: Stream, *, ordered: bool) -> bool:
        """One copy, or one batched call."""
        handle, count = stream_handle(stream), stop - start
        if count == 1 or not self._driver.has_batch_copy:
            for index in range(start, stop):
                pointers = int(runs.dst_ptrs[index]), int(runs.src_ptrs[index])
                self._quick.copy_here(*pointers, int(runs.sizes[index]), stream=handle)
            return False
        few = count <= FEW_RUNS
        copy = self._quick.copy_few if few else self._driver.copy_batch
        arrays = (address + start * POINTER_BYTES for address in runs.addresses)
        copy(*arrays, count=count, stream=handle, ordered=ordered)
        return not few

    def record(self, stream: Stream, mark: Mark | None) -> Mark:
        """Record the same event again."""
        if mark is None:
            mark = self._quick.create_event()
            self._events.append(mark)
        self._quick.record_event(mark, stream_handle(stream))
        return mark

    def wait(self, stream: Stream, mark: Mark | None) -> None:
        """On the device."""
        if mark is not None:
            self._quick.wait_event(stream_handle(stream), mark)

    def passed(self, mark: Mark) -> bool:
        """Ask the driver."""
        with self._quick.session:
            return self._quick.event_passed(mark)

    def abandon(self) -> None:
        """Leave the descriptors' memory mapped and pinned."""
        for arena in self._arenas:
            arena.abandon()

    def close(self) -> None:
        """Give everything back."""
        with self._quick.session:
            while self._events:
                self._quick.destroy_event(self._events.pop())
        self._tensors.clear()
        while self._arenas:
            self._arenas.pop().close()
        self._quick.close()
