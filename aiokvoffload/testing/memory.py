"""GPU memory of a small engine, on any device, and a worker over it."""

from collections.abc import Sequence

import torch

from aiokvoffload.base import CanonicalKVCacheRef, CanonicalKVCaches, CanonicalKVCacheTensor
from aiokvoffload.clock import Clock
from aiokvoffload.config import CopyConfig, Mode
from aiokvoffload.copy.engine import CopyEngine
from aiokvoffload.cpu.common import CPULoadStoreSpec, PoolShape
from aiokvoffload.cpu.gpu_worker import CPUOffloadingWorker
from aiokvoffload.device.base import Device
from aiokvoffload.testing.contract import WorkerRig


def make_kv_caches(tensors: Sequence[torch.Tensor], groups: Sequence[Sequence[int]] | None = None) -> CanonicalKVCaches:
    """Tensors of shape (blocks, page_bytes), and for each group the indices of its tensors; by default one of all."""
    page_bytes = [tensor[0].numel() * tensor.element_size() for tensor in tensors]
    return CanonicalKVCaches(
        [CanonicalKVCacheTensor(tensor, size) for tensor, size in zip(tensors, page_bytes, strict=True)],
        [
            [CanonicalKVCacheRef(tensor_idx, page_bytes[tensor_idx]) for tensor_idx in tensor_indices]
            for tensor_indices in groups or [range(len(tensors))]
        ],
    )


def make_worker_rig(
    device: Device,
    *,
    num_blocks: int = 64,
    page_bytes: int = 512,
    num_tensors: int = 3,
    blocks_per_chunk: int = 2,
    num_slots: int = 8,
    mode: Mode = Mode.AWAITED,
    clock: Clock | None = None,
    engine: CopyEngine | None = None,
    copy: CopyConfig | None = None,
) -> WorkerRig:
    """A CPU worker of one group over fresh tensors."""
    tensors = [
        torch.zeros((num_blocks, page_bytes), dtype=torch.uint8, device=device.torch_device) for _ in range(num_tensors)
    ]
    worker = CPUOffloadingWorker(
        make_kv_caches(tensors),
        [PoolShape((0,), blocks_per_chunk * num_tensors * page_bytes, num_slots)],
        blocks_per_chunk=[blocks_per_chunk],
        device=device,
        mode=mode,
        clock=clock,
        engine=engine,
        copy=copy,
    )
    return WorkerRig(worker, device, tensors, blocks_per_chunk, CPULoadStoreSpec, num_slots)
