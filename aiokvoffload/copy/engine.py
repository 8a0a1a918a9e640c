"""The contract of a copy engine: from a checked job to copies on streams.

Knows who owns what until when; knows no way of copying. A job is planned first, without touching the device, and then
enqueued step by step, so that whoever enqueues several jobs can give way between two steps.
"""

import enum
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from aiokvoffload.base import Stream
from aiokvoffload.copy.direction import Direction
from aiokvoffload.copy.plan import CopyPlan, plan_copies
from aiokvoffload.copy.selection import Selection
from aiokvoffload.copy.staging import Staging
from aiokvoffload.copy.turns import Turns
from aiokvoffload.errors import OffloadError

RUNS_PER_STEP = 128
"""Most runs enqueued in one step: the device begins when the driver's call returns, a tenth of a millisecond."""

MANY_BLOCKS = 1024
"""Arithmetic on more of them, or of runs, keeps the GIL for some hundred microseconds, so it is a step of its own."""


class Step(enum.Enum):
    """What one step of enqueueing came to."""

    PREPARED = "prepared"
    """Nothing was enqueued yet."""
    DONE = "done"
    GAVE_WAY = "gave way"
    """Done, and the GIL was given up for most of it."""
    WAITS = "waits"
    """Nothing could be done yet: the device has to get on first."""


class PartialCopyError(OffloadError):
    """Raised when not every run of a plan could be enqueued; the first `runs_enqueued` surely were."""

    def __init__(self, message: str, runs_enqueued: int = 0) -> None:
        super().__init__(message)
        self.runs_enqueued = runs_enqueued


@dataclass(frozen=True, slots=True)
class Lane:
    """Where the jobs of one handler go, in order.

    Attributes:
        direction: of all its jobs.
        stream: where each of them ends.
        staging: a stream for their first stage and memory between the stages, where the engine has stages.
        turns: when copies by DMA let others' come in between; `None` never does.
    """

    direction: Direction
    stream: Stream
    staging: Staging | None = None
    turns: Turns | None = None


class Copies(ABC):
    """One job, planned. It must live until its copies have ended: the device may read its arrays until then (fault 5).

    Attributes:
        first_stream: what the job must wait for is waited for here.
        sources_stream: for a store, where its blocks have all been read before its end; otherwise `None`.
    """

    first_stream: Stream
    sources_stream: Stream | None = None

    @abstractmethod
    def enqueue(self, *, ordered: bool) -> Iterator[Step]:
        """Enqueue everything, step by step.

        Args:
            ordered: whether the sources are still being written by work that the first stream waits for, so that they
                must be read in stream order; otherwise they may be read at any time from now on.

        Raises:
            PartialCopyError: some runs could not be enqueued.
        """

    @abstractmethod
    def whole_chunks_before(self, run: int) -> int:
        """How many leading chunks lie wholly in the runs, or whatever the error counts, before `run`."""


class CopyEngine(ABC):
    """A way of copying. Enqueueing may block while the device's queue is full: on a loop only little, behind little."""

    name: str

    @abstractmethod
    def plan(self, selection: Selection, lane: Lane) -> Copies:
        """Plan one job; touches no device."""

    def open_staging(self, direction: Direction, size_bytes: int) -> Staging | None:
        """What a lane needs for this engine's stages, in at most `size_bytes` of GPU memory; `None` without stages.

        Raises:
            ConfigError: the memory cannot be had.
        """
        del direction, size_bytes
        return None


class RunEngine(CopyEngine):
    """An engine without stages: copies runs, contiguous on both sides, one after the other.

    Attributes:
        runs_per_step: most runs enqueued in one step.
        gives_way: whether it gives up the GIL for most of the time that it enqueues, as a driver's call does.
    """

    runs_per_step = RUNS_PER_STEP
    gives_way = False

    def plan(self, selection: Selection, lane: Lane) -> Copies:
        """Turn the job into runs, adjacent fragments merged."""
        return RunCopies(self, plan_copies(lane.direction, selection), lane)

    @abstractmethod
    def copy(self, plan: CopyPlan, stream: Stream, *, ordered: bool) -> None:
        """Enqueue all runs of a plan that has some; see `Copies.enqueue`.

        Raises:
            PartialCopyError: some runs could not be enqueued.
        """


class RunCopies(Copies):
    """Runs of one job, one after the other."""

    def __init__(self, engine: RunEngine, plan: CopyPlan, lane: Lane) -> None:
        self.first_stream = lane.stream
        self._engine, self._plan, self._turns = engine, plan, lane.turns

    def enqueue(self, *, ordered: bool) -> Iterator[Step]:
        """Some runs in each step."""
        if len(self._plan) > MANY_BLOCKS:
            yield Step.PREPARED
        done = Step.GAVE_WAY if self._engine.gives_way else Step.DONE
        try:
            for start, stop, size_bytes in self._steps():
                stream = self.first_stream
                if self._turns is not None:
                    stream = self._turns.next(stream, size_bytes)
                try:
                    self._engine.copy(self._plan.part(start, stop), stream, ordered=ordered)
                except PartialCopyError as error:
                    raise PartialCopyError(str(error), start + error.runs_enqueued) from error
                yield done
        finally:
            if self._turns is not None:
                self._turns.rejoin(self.first_stream)

    def _steps(self) -> Iterator[tuple[int, int, int]]:
        """Ranges of runs and their bytes: not too many, and with turns no more bytes than one of them."""
        if len(self._plan) == 1:
            yield 0, 1, int(self._plan.sizes[0])
            return
        most, start, enqueued_bytes, ends = self._engine.runs_per_step, 0, 0, self._plan.sizes.cumsum()
        while start < len(ends):
            stop = min(start + most, len(ends))
            if self._turns is not None:
                within = bisect_right(ends, enqueued_bytes + self._turns.turn_bytes)
                stop = min(stop, max(start + 1, within))
            end_bytes = int(ends[stop - 1])
            yield start, stop, end_bytes - enqueued_bytes
            start, enqueued_bytes = stop, end_bytes

    def whole_chunks_before(self, run: int) -> int:
        """From the plan."""
        return self._plan.whole_chunks_before(run)
