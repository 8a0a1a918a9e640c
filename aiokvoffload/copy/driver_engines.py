"""Copies by the CUDA driver, straight between blocks and slots: a cost for each run, so large runs suit it."""

from aiokvoffload.base import Stream
from aiokvoffload.copy.engine import PartialCopyError, RunEngine
from aiokvoffload.copy.plan import CopyPlan
from aiokvoffload.device.driver import CudaDriver, stream_handle


class DriverBatchEngine(RunEngine):
    """A thousand runs in one driver call (`cuMemcpyBatchAsync`), which for a single one is the dearer call."""

    gives_way = True

    def __init__(self, driver: CudaDriver) -> None:
        self.name = "cuda-batch"
        self._driver = driver

    def copy(self, plan: CopyPlan, stream: Stream, *, ordered: bool) -> None:
        """Enqueue the batch; when the driver refuses, none of it counts as enqueued."""
        try:
            if len(plan) == 1:
                pointers = int(plan.dst_ptrs[0]), int(plan.src_ptrs[0])
                self._driver.copy(*pointers, int(plan.sizes[0]), stream=stream_handle(stream))
                return
            self._driver.copy_batch(
                *(array.ctypes.data for array in (plan.dst_ptrs, plan.src_ptrs, plan.sizes)),
                count=len(plan),
                stream=stream_handle(stream),
                ordered=ordered,
            )
        except OSError as error:
            raise PartialCopyError(str(error)) from error


class DriverCopyEngine(RunEngine):
    """One driver call (`cuMemcpyAsync`) for each run, always in stream order, where the driver has no batched one."""

    gives_way = True

    def __init__(self, driver: CudaDriver) -> None:
        self.name = "cuda-single"
        self._driver = driver

    def copy(self, plan: CopyPlan, stream: Stream, *, ordered: bool) -> None:
        """Enqueue run after run, up to the first that the driver refuses."""
        runs = zip(plan.dst_ptrs.tolist(), plan.src_ptrs.tolist(), plan.sizes.tolist(), strict=True)
        for number, (dst_ptr, src_ptr, size_bytes) in enumerate(runs):
            try:
                self._driver.copy(dst_ptr, src_ptr, size_bytes, stream=stream_handle(stream))
            except OSError as error:
                raise PartialCopyError(str(error), number) from error
