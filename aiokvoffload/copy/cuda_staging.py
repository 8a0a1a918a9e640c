"""Staging on CUDA: the tile kernel and the driver's copies, enqueued with as little Python as there can be."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from aiokvoffload.base import Ids, Stream
from aiokvoffload.copy.arena import HostArena
from aiokvoffload.copy.driver_engines import stream_handle
from aiokvoffload.copy.staging import Mark, StagingBackend
from aiokvoffload.copy.tile_kernel import TileKernel
from aiokvoffload.copy.tiles import Descriptors, TileTable
from aiokvoffload.cpu.common import PAGE_BYTES
from aiokvoffload.device.base import Device
from aiokvoffload.device.driver import CudaDriver
from aiokvoffload.device.quick_driver import QuickDriver
from aiokvoffload.errors import ConfigError

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
        programs: of the kernel, at most.
    """

    def __init__(self, device: Device, driver: CudaDriver, tables: Sequence[TableOnGpu], *, programs: int) -> None:
        self._device, self._driver, self._programs = device, driver, programs
        self._tables_on_gpu = tuple(tables)
        self._quick = QuickDriver(device.torch_device.index)
        self._tensors: list[torch.Tensor] = []
        self._arenas: list[HostArena] = []
        self._events: list[int] = []

    @property
    def tables(self) -> tuple[TileTable, ...]:
        """One for each group."""
        return tuple(each.table for each in self._tables_on_gpu)

    def allocate(self, size_bytes: int) -> int:
        """GPU memory, from torch's allocator."""
        try:
            tensor = torch.empty(size_bytes, dtype=torch.uint8, device=self._device.torch_device)
        except torch.OutOfMemoryError as error:
            raise ConfigError(f"staging_bytes: {size_bytes} bytes of GPU memory cannot be had: {error}") from error
        self._tensors.append(tensor)
        return tensor.data_ptr()

    def allocate_host(self, size_bytes: int) -> Descriptors:
        """Pinned memory; where it cannot be pinned, uploading blocks and is right all the same."""
        arena = HostArena(-(-size_bytes // PAGE_BYTES), PAGE_BYTES, device=self._device)
        self._arenas.append(arena)
        return arena.rows().reshape(-1).view("int64")

    @contextmanager
    def session(self) -> Iterator[None]:
        """Make the device's context current."""
        with self._quick.current():
            yield

    def upload(self, dst_ptr: int, src_ptr: int, size_bytes: int, stream: Stream) -> None:
        """One small copy."""
        self._quick.copy_here(dst_ptr, src_ptr, size_bytes, stream=stream_handle(stream))

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

    def transfer(self, dst_ptrs: Ids, src_ptrs: Ids, sizes: Ids, stream: Stream, *, ordered: bool) -> None:
        """One copy, or one batched call."""
        handle, count = stream_handle(stream), len(sizes)
        if count == 1 or not self._driver.has_batch_copy:
            for dst_ptr, src_ptr, size in zip(dst_ptrs.tolist(), src_ptrs.tolist(), sizes.tolist(), strict=True):
                self._quick.copy_here(dst_ptr, src_ptr, size, stream=handle)
            return
        copy = self._quick.copy_few if count <= FEW_RUNS else self._driver.copy_batch
        arrays = (dst_ptrs.ctypes.data, src_ptrs.ctypes.data, sizes.ctypes.data)
        copy(*arrays, count=count, stream=handle, ordered=ordered)

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
        with self._quick.current():
            return self._quick.event_passed(mark)

    def close(self) -> None:
        """Give everything back."""
        with self._quick.current():
            while self._events:
                self._quick.destroy_event(self._events.pop())
        self._tensors.clear()
        while self._arenas:
            self._arenas.pop().close()
        self._quick.close()
