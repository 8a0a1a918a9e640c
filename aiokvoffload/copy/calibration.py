"""Measures what copies cost on this machine, on scratch memory, in some fifty milliseconds.

Knows how to time an engine; knows nothing of how any of them copies.
"""

from statistics import median

import numpy as np
import torch

from aiokvoffload.base import CanonicalKVCacheRef, CanonicalKVCaches, CanonicalKVCacheTensor, GPULoadStoreSpec
from aiokvoffload.copy.arena import HostArena
from aiokvoffload.copy.backends import make_backends
from aiokvoffload.copy.costs import SHORT_RUN_BYTES, CopyCosts, DirectionCosts
from aiokvoffload.copy.direction import Direction
from aiokvoffload.copy.engine import Copies, CopyEngine, Lane
from aiokvoffload.copy.layout import lay_out
from aiokvoffload.copy.routes import make_routes
from aiokvoffload.copy.selection import Selector
from aiokvoffload.copy.staging import DESCRIPTOR_BYTES, Staging
from aiokvoffload.cpu.common import PoolShape
from aiokvoffload.device.base import Device

SCRATCH_BYTES = 32 << 20
SHORT_BYTES, LONG_BYTES = SHORT_RUN_BYTES // 4, SHORT_RUN_BYTES * 4
WARM_UPS, REPEAT = 2, 5


def measure_costs(device: Device, runs: CopyEngine, direct: CopyEngine, *, name: str, programs: int) -> CopyCosts:
    """Time copies of runs of three lengths, and by the direct kernel, in both directions.

    Args:
        device: whose copies they are.
        runs: copies run by run.
        direct: copies by a kernel.
        name: of the device, kept with the figures.
        programs: of the kernels.

    Raises:
        ConfigError: the memory for it cannot be had.
        OffloadError: a copy failed.
    """
    short, long = Scratch(device, SHORT_BYTES, programs=programs), Scratch(device, LONG_BYTES, programs=programs)
    try:
        by_direction = [_costs_of(direction, short, long, runs, direct) for direction in Direction]
    finally:
        short.close()
        long.close()
    return CopyCosts(device_name=name, store=by_direction[0], load=by_direction[1])


def _costs_of(
    direction: Direction, short: "Scratch", long: "Scratch", runs: CopyEngine, direct: CopyEngine
) -> DirectionCosts:
    whole_s = long.seconds(runs, direction, adjacent=True)
    per_run_s = [max(0.0, each.seconds(runs, direction) - whole_s) / each.num_rows for each in (short, long)]
    return DirectionCosts(
        bytes_per_s=SCRATCH_BYTES / whole_s,
        short_run_s=per_run_s[0],
        long_run_s=per_run_s[1],
        kernel_bytes_per_s=SCRATCH_BYTES / short.seconds(direct, direction),
    )


class Scratch:
    """One GPU tensor and a slot for each of its rows, to copy between; to be closed.

    Args:
        device: where the tensor is.
        row_bytes: of each row.
        programs: of the kernels.

    Attributes:
        num_rows: rows of the tensor.

    Raises:
        ConfigError: the memory cannot be had.
    """

    def __init__(self, device: Device, row_bytes: int, *, programs: int) -> None:
        self._device, self.num_rows = device, SCRATCH_BYTES // row_bytes
        tensor = torch.zeros((self.num_rows, row_bytes), dtype=torch.uint8, device=device.torch_device)
        caches = CanonicalKVCaches([CanonicalKVCacheTensor(tensor, row_bytes)], [[CanonicalKVCacheRef(0, row_bytes)]])
        self._layout = lay_out(caches, device.torch_device)
        pool = PoolShape((0,), row_bytes, self.num_rows)
        self._arena = HostArena(self.num_rows, pool.row_bytes, device=device)
        routes = make_routes(self._layout, [pool], [self._arena], [1])
        self._selector = Selector(routes, self.num_rows, self.num_rows)
        backend = make_backends(device, self._layout, programs=programs)
        self._staging = None if backend is None else Staging(
            backend(), device.create_stream(), size_bytes=2 * DESCRIPTOR_BYTES, num_segments=1
        )

    def seconds(self, engine: CopyEngine, direction: Direction, *, adjacent: bool = False) -> float:
        """Seconds on the device to copy all rows, in one run or with no two adjacent; the median of a few."""
        rows = np.arange(self.num_rows)
        blocks = rows if adjacent else rows[::-1]
        selection = self._selector.select(direction, GPULoadStoreSpec(blocks), rows)
        lane = Lane(direction, self._device.create_stream(), self._staging)
        times_s = [self._time(engine.plan(selection, lane), lane) for _ in range(WARM_UPS + REPEAT)]
        return median(times_s[WARM_UPS:])

    def _time(self, copies: Copies, lane: Lane) -> float:
        start = self._device.record(lane.stream)
        for _ in copies.enqueue(ordered=True):
            pass
        end = self._device.record(lane.stream)
        end.synchronize()
        return self._device.elapsed_s(start, end)

    def close(self) -> None:
        """Give the memory back."""
        if self._staging is not None:
            self._staging.close()
        self._arena.close()
