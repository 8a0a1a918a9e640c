"""The choice between engines, for each job by what it would cost: fragments, runs of adjacent slots, bytes.

Knows estimates; each engine knows its own way. The direction only says which of the measured costs count.
"""

from collections import Counter
from typing import NamedTuple

import numpy as np

from aiokvoffload.copy.calibration import Engines
from aiokvoffload.copy.costs import CopyCosts
from aiokvoffload.copy.direction import Direction
from aiokvoffload.copy.engine import Copies, CopyEngine, Lane
from aiokvoffload.copy.selection import GroupPart, Selection
from aiokvoffload.copy.slot_runs import slot_runs
from aiokvoffload.copy.staging import Staging

STAGE_S = 40e-6
"""What the other stage of the first or last segment adds to a job, and the streams' waiting for each other."""
FAR_RUN_S = 0.5e-6
"""What DMA takes for each run of slots beyond what was measured, since those of a pool of gigabytes lie far apart and
those of the calibration do not: 0.3 to 0.7 µs on an H200."""
LAUNCH_S = 20e-6
"""What it takes to give a kernel its descriptors."""
FEW_RUNS = 8
"""No more than these cost less than a stage between or a launch, whatever they are; looking closer takes as long."""
SAMPLED_BLOCKS = 1024
DRIVER_SHARE = 1 / 3
"""The driver has one lock: a third of its time is for stores, a third for loads, and a third for the model's launches.
Copies that need more would not slow themselves down only."""
DIRECT_GAIN = 1.08
"""How much faster the direct kernel must be: while it runs, the model's kernels do not get the processors it is on."""


class JobShape(NamedTuple):
    """What a job's cost depends on: bytes, runs between blocks and slots, runs of adjacent slots."""

    size_bytes: int
    runs: int
    slot_runs: int


class AutoEngine(CopyEngine):
    """Chooses for each job.

    Args:
        engines: to choose from.
        costs: of this machine.

    Attributes:
        chosen: how many jobs each engine got, by its name.
    """

    def __init__(self, engines: Engines, costs: CopyCosts) -> None:
        self.name = "auto"
        self._engines, self._costs = engines, costs
        self.chosen: Counter[str] = Counter()

    def open_staging(self, direction: Direction, size_bytes: int) -> Staging | None:
        """The staged engine's."""
        return self._engines.staged.open_staging(direction, size_bytes)

    def plan(self, selection: Selection, lane: Lane) -> Copies:
        """By the engine that suits the job."""
        few = selection.num_fragments <= FEW_RUNS
        engine = self._engines.runs if few else self.choose(shape_of(selection), lane.direction)
        self.chosen[engine.name] += 1
        return engine.plan(selection, lane)

    def choose(self, job: JobShape, direction: Direction) -> CopyEngine:
        """The engine with the least estimate."""
        costs = self._costs.of(direction)
        dma_s = job.size_bytes / costs.bytes_per_s + job.slot_runs * FAR_RUN_S
        driver_s = costs.host_run_s / DRIVER_SHARE
        runs_s = dma_s + costs.runs_s(job.runs, job.size_bytes)
        staged_s = dma_s + job.slot_runs * costs.slot_run_s + STAGE_S
        by_dma, by_dma_s = self._engines.runs, runs_s
        if max(staged_s, driver_s * job.slot_runs) < max(runs_s, driver_s * job.runs):
            by_dma, by_dma_s = self._engines.staged, staged_s
        if (job.size_bytes / costs.kernel_bytes_per_s + LAUNCH_S) * DIRECT_GAIN < by_dma_s:
            return self._engines.direct
        return by_dma


def shape_of(selection: Selection) -> JobShape:
    """Counted without a loop over fragments."""
    parts = [_shape_of_part(selection, part) for part in selection.parts]
    return JobShape(*(sum(numbers) for numbers in zip(*parts, strict=True))) if parts else JobShape(0, 0, 0)


def _shape_of_part(selection: Selection, part: GroupPart) -> JobShape:
    """A long part is judged by its beginning: to look at all of it takes as long as to plan it."""
    num_blocks, num_tensors = part.blocks.stop - part.blocks.start, len(part.route.layout.base_ptrs)
    block_bytes, sampled = part.route.layout.block_bytes, min(num_blocks, SAMPLED_BLOCKS)
    num_slot_runs, runs = len(slot_runs(selection, part, range(sampled * block_bytes))), sampled * num_tensors
    if num_tensors == 1:  # consecutive blocks are one run as long as their slots are adjacent
        block_ids = selection.block_ids[part.blocks.start : part.blocks.start + sampled]
        runs = min(runs, int(np.count_nonzero(np.diff(block_ids) != 1)) + num_slot_runs)
    scale = num_blocks / sampled
    return JobShape(num_blocks * block_bytes, round(runs * scale), round(num_slot_runs * scale))
