"""What is asked of the copy benchmark, checked once. Knows sizes; measures nothing."""

import enum
from dataclasses import dataclass, field
from pathlib import Path

from aiokvoffload.cli.traces import SAMPLE_TRACE
from aiokvoffload.config import CopyConfig
from aiokvoffload.errors import ArgumentError

ENGINES = ("auto", "staged", "batched", "direct", "torch", "one-call")
"""The library's engines, and one driver call for a whole job, which is what `batched` does in slices."""
MAX_TENSORS = 32


class SlotOrder(enum.Enum):
    """Which slots a job gets."""

    ADJACENT = "adjacent"
    """One behind the other."""
    SCATTERED = "scattered"
    """At random."""
    AGED = "aged"
    """As the pool hands them out after a trace has been through it."""


class Ways(enum.Enum):
    """Which copies run, each over its own blocks and slots."""

    D2H = "d2h"
    H2D = "h2d"
    BOTH = "both"

    @property
    def stores(self) -> bool:
        """Whether blocks are stored."""
        return self is not Ways.H2D

    @property
    def loads(self) -> bool:
        """Whether slots are loaded."""
        return self is not Ways.D2H

    @property
    def count(self) -> int:
        """Directions at once."""
        return self.stores + self.loads


@dataclass(frozen=True, slots=True)
class Shape:
    """How a chunk lies in GPU memory.

    Attributes:
        fragment_bytes: one block in one tensor.
        slot_bytes: one chunk.
    """

    fragment_bytes: int
    slot_bytes: int

    def __post_init__(self) -> None:
        if self.fragment_bytes < 1 or self.slot_bytes % self.fragment_bytes:
            raise ArgumentError(
                f"fragment_bytes must divide slot_bytes, got {self.fragment_bytes} and {self.slot_bytes}"
            )

    @property
    def num_tensors(self) -> int:
        """Layers: as many as a chunk has fragments, up to a model's."""
        fragments = self.slot_bytes // self.fragment_bytes
        return next(count for count in range(min(MAX_TENSORS, fragments), 0, -1) if fragments % count == 0)

    @property
    def blocks_per_chunk(self) -> int:
        """Blocks of one chunk."""
        return self.slot_bytes // (self.fragment_bytes * self.num_tensors)


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyOptions:
    """One run of the benchmark: every combination is measured.

    Attributes:
        fragment_bytes: sizes of fragments; those that do not divide a slot are left out.
        slot_bytes: sizes of slots.
        slots: orders of slots.
        job_bytes: of one job; at least one slot.
        jobs: submitted at once in each direction.
        pool_bytes: of GPU memory, and as much of CPU memory; stores use one half of each and loads the other.
        ways: directions.
        engines: names out of `ENGINES`.
        trace: what ages a pool.
        device: `auto`, `cuda` or `host`.
        repeat: measurements, of which the medians are taken.
        compute: whether to measure what copying does to a GEMM and a GEMV.
        copy: how the worker copies, but for the engine.

    Raises:
        ArgumentError: a number is below 1, a name is unknown, or no fragment fits any slot.
    """

    fragment_bytes: tuple[int, ...] = (2 << 10, 16 << 10, 128 << 10, 2 << 20)
    slot_bytes: tuple[int, ...] = (2 << 20,)
    slots: tuple[SlotOrder, ...] = (SlotOrder.SCATTERED,)
    job_bytes: int = 256 << 20
    jobs: int = 8
    pool_bytes: int = 2 << 30
    ways: tuple[Ways, ...] = (Ways.D2H, Ways.H2D, Ways.BOTH)
    engines: tuple[str, ...] = ("auto",)
    trace: Path = SAMPLE_TRACE
    device: str = "auto"
    repeat: int = 9
    compute: bool = False
    copy: CopyConfig = field(default_factory=CopyConfig)

    def __post_init__(self) -> None:
        if min(self.job_bytes, self.jobs, self.pool_bytes, self.repeat, *self.fragment_bytes, *self.slot_bytes) < 1:
            raise ArgumentError(f"all numbers must be at least 1, got {self}")
        if unknown := set(self.engines) - set(ENGINES):
            raise ArgumentError(f"engines must be among {', '.join(ENGINES)}, got {', '.join(sorted(unknown))}")
        if not self.shapes:
            raise ArgumentError(
                f"one of fragment_bytes must divide one of slot_bytes, got {_listed(self.fragment_bytes)} and "
                f"{_listed(self.slot_bytes)}"
            )
        if self.job_bytes < max(self.slot_bytes):
            raise ArgumentError(f"job_bytes must hold a slot of {max(self.slot_bytes)} bytes, got {self.job_bytes}")
        if self.pool_bytes < 2 * self.job_bytes:
            raise ArgumentError(f"pool_bytes must be twice job_bytes, {2 * self.job_bytes}, got {self.pool_bytes}")

    @property
    def combinations(self) -> int:
        """How many figures it will be."""
        return len(self.shapes) * len(self.slots) * len(self.engines) * len(self.ways)

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """Every fragment size in every slot size that it divides."""
        return tuple(
            Shape(fragment, slot)
            for slot in self.slot_bytes
            for fragment in self.fragment_bytes
            if fragment <= slot and slot % fragment == 0
        )


def _listed(numbers: tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers))
