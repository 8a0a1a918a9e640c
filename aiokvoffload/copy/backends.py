"""Which staging a device has, for one worker's tensors."""

from collections.abc import Callable
from functools import partial

import torch

from aiokvoffload.copy.cuda_staging import UPLOAD_SHAPE, CudaStaging, TableOnGpu
from aiokvoffload.copy.host_staging import HostStaging
from aiokvoffload.copy.layout import KVCacheLayout
from aiokvoffload.copy.staging import StagingBackend
from aiokvoffload.copy.tile_kernel import TileKernel, compile_kernel
from aiokvoffload.copy.tiles import KernelShape, tile_table
from aiokvoffload.device.base import Device
from aiokvoffload.device.driver import CudaDriver


def make_backends(device: Device, layout: KVCacheLayout, *, programs: int) -> Callable[[], StagingBackend] | None:
    """What makes a backend for each lane; `None` where the device has no staging.

    Args:
        device: where.
        layout: whose groups' tiles are to be moved.
        programs: of the kernel, at most.
    """
    tables = [tile_table(group) for group in layout.groups]
    if device.torch_device.type == "cpu":
        return partial(HostStaging, device, tables)
    driver: CudaDriver | None = getattr(device, "driver", None)
    if driver is None:
        return None
    kernels: dict[KernelShape, TileKernel] = {}
    for shape in {UPLOAD_SHAPE, *(table.shape for table in tables)}:
        kernel = compile_kernel(shape, device.torch_device)
        if kernel is None:
            return None
        kernels[shape] = kernel
    on_gpu = [
        TableOnGpu(table, torch.from_numpy(table.rows).to(device.torch_device), kernels[table.shape])
        for table in tables
    ]
    return partial(CudaStaging, device, driver, on_gpu, upload_kernel=kernels[UPLOAD_SHAPE], programs=programs)
