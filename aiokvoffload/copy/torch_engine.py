"""Copies by torch alone: works wherever torch does, and pays a Python call for each run."""

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch

from aiokvoffload.base import Ids, Stream
from aiokvoffload.copy.arena import HostArena
from aiokvoffload.copy.engine import PartialCopyError, RunEngine
from aiokvoffload.copy.layout import KVCacheLayout
from aiokvoffload.copy.plan import CopyPlan
from aiokvoffload.device.base import Device


class TorchEngine(RunEngine):
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


def regions_of(layout: KVCacheLayout, arenas: Sequence[HostArena]) -> list[torch.Tensor]:
    """All memory that plans may name, as flat uint8 tensors."""
    host = [torch.from_numpy(arena.rows().reshape(-1)) for arena in arenas]
    return [*host, *(tensor.flatten().view(torch.uint8) for tensor in layout.tensors)]
