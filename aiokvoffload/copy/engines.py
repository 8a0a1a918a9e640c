"""From fragments to copies: the ways to put a plan's runs onto a stream, and which one fits a device.

Knows pointers and streams; knows nothing of chunks or jobs.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from aiokvoffload.base import Ids, Stream
from aiokvoffload.copy.arena import HostArena
from aiokvoffload.copy.host_copy import copy_fragments
from aiokvoffload.copy.layout import KVCacheLayout
from aiokvoffload.copy.plan import CopyPlan
from aiokvoffload.device.base import Device
from aiokvoffload.device.driver import CudaDriver
from aiokvoffload.errors import OffloadError


class PartialCopyError(OffloadError):
    """Raised when not every run of a plan could be enqueued; the first `runs_enqueued` surely were."""

    def __init__(self, message: str, runs_enqueued: int = 0) -> None:
        super().__init__(message)
        self.runs_enqueued = runs_enqueued


class CopyEngine(ABC):
    """Enqueues copies. Its calls may block while the device's queue is full: never on a loop, unless small."""

    name: str

    @abstractmethod
    def copy(self, plan: CopyPlan, stream: Stream, *, ordered: bool) -> None:
        """Enqueue all runs of a plan that has some.

        Args:
            plan: must live until the copies have ended.
            stream: where to.
            ordered: whether the sources are still being written by work that the stream waits for, so that they must
                be read in stream order; otherwise they may be read at any time from now on.

        Raises:
            PartialCopyError: some runs could not be enqueued.
        """


class DriverBatchEngine(CopyEngine):
    """All runs in one driver call (`cuMemcpyBatchAsync`): its cost is per run, so large runs suit it."""

    def __init__(self, driver: CudaDriver) -> None:
        self.name = "cuda-batch"
        self._driver = driver

    def copy(self, plan: CopyPlan, stream: Stream, *, ordered: bool) -> None:
        """Enqueue the batch; when the driver refuses, none of it counts as enqueued."""
        try:
            self._driver.copy_batch(
                *(array.ctypes.data for array in (plan.dst_ptrs, plan.src_ptrs, plan.sizes)),
                count=len(plan),
                stream=_handle(stream),
                ordered=ordered,
            )
        except OSError as error:
            raise PartialCopyError(str(error)) from error


class DriverCopyEngine(CopyEngine):
    """One driver call (`cuMemcpyAsync`) for each run, always in stream order, where the driver has no batched one."""

    def __init__(self, driver: CudaDriver) -> None:
        self.name = "cuda-single"
        self._driver = driver

    def copy(self, plan: CopyPlan, stream: Stream, *, ordered: bool) -> None:
        """Enqueue run after run, up to the first that the driver refuses."""
        runs = zip(plan.dst_ptrs.tolist(), plan.src_ptrs.tolist(), plan.sizes.tolist(), strict=True)
        for number, (dst_ptr, src_ptr, size_bytes) in enumerate(runs):
            try:
                self._driver.copy(dst_ptr, src_ptr, size_bytes, stream=_handle(stream))
            except OSError as error:
                raise PartialCopyError(str(error), number) from error


class HostEngine(CopyEngine):
    """Copies on the stream's thread, for the host device."""

    def __init__(self, device: Device) -> None:
        self.name = "host"
        self._device = device

    def copy(self, plan: CopyPlan, stream: Stream, *, ordered: bool) -> None:
        """Enqueue all runs as one piece of work."""
        try:
            self._device.enqueue(stream, partial(copy_fragments, plan.dst_ptrs, plan.src_ptrs, plan.sizes))
        except OffloadError as error:
            raise PartialCopyError(str(error)) from error


class TorchEngine(CopyEngine):
    """`Tensor.copy_` for each run, for accelerators that torch knows and we have no driver for.

    Args:
        device: whose streams these are.
        regions: flat uint8 tensors that all addresses of all plans lie in.
    """

    def __init__(self, device: Device, regions: Sequence[torch.Tensor]) -> None:
        self.name = "torch"
        self._device = device
        self._regions = sorted(regions, key=lambda region: region.data_ptr())
        self._starts = np.array([region.data_ptr() for region in self._regions], dtype=np.int64)

    def copy(self, plan: CopyPlan, stream: Stream, *, ordered: bool) -> None:
        """Enqueue run after run."""
        try:
            self._device.enqueue(stream, partial(self._copy_all, plan))
        except RuntimeError as error:
            raise PartialCopyError(str(error)) from error

    def _copy_all(self, plan: CopyPlan) -> None:
        sources, targets = self._find(plan.src_ptrs), self._find(plan.dst_ptrs)
        for (src_region, src_offset), (dst_region, dst_offset), size in zip(
            sources, targets, plan.sizes.tolist(), strict=True
        ):
            target = self._regions[dst_region][dst_offset : dst_offset + size]
            target.copy_(self._regions[src_region][src_offset : src_offset + size], non_blocking=True)

    def _find(self, pointers: Ids) -> list[list[int]]:
        """Region index and offset of each pointer."""
        regions = np.searchsorted(self._starts, pointers, side="right") - 1
        pairs: list[list[int]] = np.stack((regions, pointers - self._starts[regions]), axis=1).tolist()
        return pairs


def choose_engine(device: Device, layout: KVCacheLayout, arenas: Sequence[HostArena]) -> CopyEngine:
    """The fastest engine that `device` has."""
    driver: CudaDriver | None = getattr(device, "driver", None)
    if driver is not None:
        return DriverBatchEngine(driver) if driver.has_batch_copy else DriverCopyEngine(driver)
    if device.torch_device.type == "cpu":
        return HostEngine(device)
    return TorchEngine(device, regions_of(layout, arenas))


def regions_of(layout: KVCacheLayout, arenas: Sequence[HostArena]) -> list[torch.Tensor]:
    """All memory that plans may name, as flat uint8 tensors."""
    host = [torch.from_numpy(arena.rows().reshape(-1)) for arena in arenas]
    return [*host, *(tensor.flatten().view(torch.uint8) for tensor in layout.tensors)]


def _handle(stream: Any) -> int:
    """The driver's handle of a torch stream. The batched call refuses handle 0, the legacy default stream."""
    handle: int = stream.cuda_stream
    return handle
