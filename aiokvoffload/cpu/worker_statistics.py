"""What a worker tells about itself: frozen records, no behaviour."""

from dataclasses import dataclass

from aiokvoffload.copy.direction import Direction
from aiokvoffload.poller import PollerStatistics


@dataclass(frozen=True, slots=True)
class DirectionStatistics:
    """What one stream has moved.

    Attributes:
        name: what the stream is for.
        direction: store or load.
        jobs_in_flight: submitted and not ended.
        jobs_ended: ended, failed ones included.
        jobs_failed: ended without all their bytes.
        moved_bytes: bytes of the jobs that succeeded.
        busy_s: seconds the device spent on them.
    """

    name: str
    direction: Direction
    jobs_in_flight: int
    jobs_ended: int
    jobs_failed: int
    moved_bytes: int
    busy_s: float

    @property
    def gigabytes_per_s(self) -> float:
        """Bytes over busy time; 0 before anything has moved."""
        return self.moved_bytes / self.busy_s / 1e9 if self.busy_s > 0 else 0.0


@dataclass(frozen=True, slots=True)
class WorkerStatistics:
    """One worker, at one moment.

    Attributes:
        streams: each stream's share.
        pool_bytes: host memory for slots as it was asked for.
        ready_bytes: the part of it that can be used already.
        pinned_bytes: the part of that which the device can copy from and to directly.
        engine: name of the copy engine in use.
        poller: completions and their lag.
        staging_bytes: GPU memory of the rings between a copy's stages.
        growing: whether more of the memory is still to come.
        growth_error: why the rest of it never will; empty if it did, or may.
        engine_error: why the faster engine that was to follow could not be had; empty if it could, or may.
    """

    streams: tuple[DirectionStatistics, ...]
    pool_bytes: int
    ready_bytes: int
    pinned_bytes: int
    engine: str
    poller: PollerStatistics
    growing: bool = False
    growth_error: str = ""
    staging_bytes: int = 0
    engine_error: str = ""

    @property
    def stored_bytes(self) -> int:
        """Bytes moved GPU to CPU."""
        return sum(stream.moved_bytes for stream in self.streams if stream.direction is Direction.STORE)

    @property
    def loaded_bytes(self) -> int:
        """Bytes moved CPU to GPU."""
        return sum(stream.moved_bytes for stream in self.streams if stream.direction is Direction.LOAD)

    @property
    def jobs_in_flight(self) -> int:
        """Jobs submitted and not ended."""
        return sum(stream.jobs_in_flight for stream in self.streams)

    @property
    def jobs_ended(self) -> int:
        """Jobs ended, failed ones included."""
        return sum(stream.jobs_ended for stream in self.streams)

    @property
    def jobs_failed(self) -> int:
        """Jobs that ended without all their bytes."""
        return sum(stream.jobs_failed for stream in self.streams)

    @property
    def pinned(self) -> bool:
        """Whether all slots that can be used lie in pinned memory."""
        return self.pinned_bytes == self.ready_bytes
