"""Measures what copies cost on this machine, on scratch memory, in half a second.

Knows how to time an engine; knows nothing of how any of them copies.
"""

import contextlib
import time
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

import numpy as np
import torch

from aiokvoffload.base import CanonicalKVCacheRef, CanonicalKVCaches, CanonicalKVCacheTensor, GPULoadStoreSpec
from aiokvoffload.copy.arena import HostArena
from aiokvoffload.copy.backends import make_backends
from aiokvoffload.copy.costs import SHORT_RUN_BYTES, CopyCosts, DirectionCosts
from aiokvoffload.copy.direction import Direction
from aiokvoffload.copy.engine import CopyEngine, Lane
from aiokvoffload.copy.layout import lay_out
from aiokvoffload.copy.routes import make_routes
from aiokvoffload.copy.selection import Selection, Selector
from aiokvoffload.copy.staged_engine import NUM_SEGMENTS
from aiokvoffload.copy.staging import DESCRIPTOR_BYTES, Staging
from aiokvoffload.cpu.common import PoolShape
from aiokvoffload.device.base import Device
from aiokvoffload.errors import ConfigError

SCRATCH_BYTES = 32 << 20
RING_BYTES = 8 << 20
WARM_UPS, REPEAT = 1, 5
MORE_JOBS = 2
"""Behind a first one, whose beginning and end are not to be counted."""
JOBS_AHEAD = 4
"""Of one run each: while the device copies them, the others are enqueued, which takes longer than to copy them."""
MIN_SECONDS = 1e-6


class Engines(NamedTuple):
    """What there is to choose from: run by run, in stages, by a kernel alone."""

    runs: CopyEngine
    staged: CopyEngine
    direct: CopyEngine


def measure_costs(device: Device, engines: Engines, *, name: str, programs: int) -> CopyCosts:
    """Time copies of runs of three lengths by each engine, in both directions.

    Args:
        device: whose copies they are.
        engines: which.
        name: of the device, kept with the figures.
        programs: of the kernels.

    Raises:
        ConfigError: the memory for it cannot be had.
        OffloadError: a copy failed.
    """
    with contextlib.ExitStack() as closing:
        scratches = []
        for row_bytes in (SHORT_RUN_BYTES // 4, SHORT_RUN_BYTES, SHORT_RUN_BYTES * 4):
            scratch = Scratch(device, row_bytes, programs=programs)
            closing.callback(scratch.close)
            scratches.append(scratch)
        store, load = (_costs_of(direction, scratches, engines) for direction in Direction)
    return CopyCosts(device_name=name, store=store, load=load)


def _costs_of(direction: Direction, scratches: Sequence["Scratch"], engines: Engines) -> DirectionCosts:
    short, middle, long = scratches
    whole_s = long.seconds(engines.runs, direction, adjacent=True)
    one_run_s = middle.seconds(engines.staged, direction, adjacent=True, behind=engines.runs)
    many_runs_s = middle.seconds(engines.staged, direction, behind=engines.runs)
    return DirectionCosts(
        bytes_per_s=SCRATCH_BYTES / whole_s,
        short_run_s=max(0.0, short.seconds(engines.runs, direction) - whole_s) / short.num_rows,
        long_run_s=max(0.0, long.seconds(engines.runs, direction) - whole_s) / long.num_rows,
        host_run_s=middle.host_seconds(engines.runs, direction) / middle.num_rows,
        slot_run_s=max(0.0, many_runs_s - one_run_s) / middle.num_rows,
        kernel_bytes_per_s=SCRATCH_BYTES / short.seconds(engines.direct, direction),
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
        with contextlib.ExitStack() as undo:
            try:
                tensor = torch.zeros((self.num_rows, row_bytes), dtype=torch.uint8, device=device.torch_device)
            except torch.OutOfMemoryError as error:
                raise ConfigError(f"{SCRATCH_BYTES} bytes of GPU memory to calibrate with cannot be had") from error
            self._layout = lay_out(_one_tensor(tensor, row_bytes), device.torch_device)
            pool = PoolShape((0,), row_bytes, self.num_rows)
            arena = HostArena(self.num_rows, pool.row_bytes, device=device)
            undo.callback(arena.close)
            self._selector = Selector(make_routes(self._layout, [pool], [arena], [1]), self.num_rows, self.num_rows)
            make_backend = make_backends(device, self._layout, programs=programs)
            if make_backend is None:
                raise ConfigError(f"there is no staging on {device!r}")
            size_bytes, stream = DESCRIPTOR_BYTES + RING_BYTES, device.create_stream()
            self._staging = Staging(make_backend(), stream, size_bytes=size_bytes, num_segments=NUM_SEGMENTS)
            undo.callback(self._staging.close)
            self._given_back = undo.pop_all()

    def seconds(
        self,
        engine: CopyEngine,
        direction: Direction,
        *,
        adjacent: bool = False,
        behind: CopyEngine | None = None,
    ) -> float:
        """Seconds that copying all rows adds to other such copies; the median of a few.

        Args:
            engine: copies them.
            direction: where to.
            adjacent: whether all are one run, or no two are.
            behind: keeps the device busy before, so that only its own time is seen and not this thread's.
        """
        lane = self._lane(direction)
        first = [] if behind is None else [(behind, self._select(direction, adjacent=True))] * JOBS_AHEAD
        job = (engine, self._select(direction, adjacent=adjacent))
        times_s = [
            self._time([*first, *[job] * (1 + MORE_JOBS)], lane) - self._time([*first, job], lane)
            for _ in range(WARM_UPS + REPEAT)
        ]
        return max(median(times_s[WARM_UPS:]) / MORE_JOBS, MIN_SECONDS)

    def host_seconds(self, engine: CopyEngine, direction: Direction) -> float:
        """Seconds that this thread needs to enqueue such a copy, no two rows adjacent; the median of a few."""
        selection, lane = self._select(direction, adjacent=False), self._lane(direction)
        times_s = []
        for _ in range(WARM_UPS + REPEAT):
            copies = engine.plan(selection, lane)
            began_s = time.perf_counter()
            for _ in copies.enqueue(ordered=True):
                pass
            times_s.append(time.perf_counter() - began_s)
            self._device.record(lane.stream).synchronize()
        return median(times_s[WARM_UPS:])

    def _lane(self, direction: Direction) -> Lane:
        return Lane(direction, self._device.create_stream(), self._staging)

    def _select(self, direction: Direction, *, adjacent: bool) -> Selection:
        rows = np.arange(self.num_rows)
        return self._selector.select(direction, GPULoadStoreSpec(rows), rows if adjacent else rows[::-1])

    def _time(self, jobs: Sequence[tuple[CopyEngine, Selection]], lane: Lane) -> float:
        start = self._device.record(lane.stream)
        plans = []  # to be kept until they have ended
        for engine, selection in jobs:
            plans.append(engine.plan(selection, lane))
            for _ in plans[-1].enqueue(ordered=True):
                pass
        end = self._device.record(lane.stream)
        end.synchronize()
        return self._device.elapsed_s(start, end)

    def close(self) -> None:
        """Give the memory back."""
        self._given_back.close()


def _one_tensor(tensor: torch.Tensor, row_bytes: int) -> CanonicalKVCaches:
    return CanonicalKVCaches([CanonicalKVCacheTensor(tensor, row_bytes)], [[CanonicalKVCacheRef(0, row_bytes)]])
