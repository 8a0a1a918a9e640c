"""What a service is made of, ready to run, and its bounds. Records; what runs them is the service."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from aiokvoffload.base import OffloadingManager, OffloadingWorker, SecondaryTier
from aiokvoffload.clock import Clock, SystemClock
from aiokvoffload.device import Device
from aiokvoffload.tiering.config import TierConfig
from aiokvoffload.tiering.manager import TieringOffloadingManager


@dataclass(frozen=True, slots=True, kw_only=True)
class TierParts:
    """Secondary tiers and what decides about them.

    Attributes:
        manager: of all tiers; the service's own may be one that wraps it.
        tiers: each with its limits, not opened yet.
        room_timeout_s: how long a load waits for CPU memory to promote into.
        close_timeout_s: how long a close waits for the tiers.
        clock: measures both, and the deadlines of calls.
    """

    manager: TieringOffloadingManager
    tiers: Sequence[tuple[SecondaryTier, TierConfig]]
    room_timeout_s: float = 2.0
    close_timeout_s: float = 30.0
    clock: Clock = field(default_factory=SystemClock)


@dataclass(frozen=True, slots=True)
class Parts:
    """What a service is made of, ready to run.

    Attributes:
        manager: facts, for all workers.
        workers: bytes, in rank order, slot for slot in step with the manager.
        device: closed after the workers; `None` if somebody else closes it.
        tiers: what lies below CPU memory, if anything does.
    """

    manager: OffloadingManager
    workers: Sequence[OffloadingWorker]
    device: Device | None = None
    tiers: TierParts | None = None

    def close(self) -> None:
        """Give back parts that were made and never used; from a plain thread."""
        for worker in self.workers:
            worker.close()
        if self.device is not None:
            self.device.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceLimits:
    """Bounds of a service (I11).

    Attributes:
        max_run_keys: most keys handled in one go, so that the loop stays free (I10).
        max_run_fragments: most copies that the loop enqueues in one go, for the same reason.
        max_waiting_transfers: loads and stores that wait for their turn.
        max_jobs_in_flight: transfers submitted and not ended; later runs wait for room.
        max_pending_events: events that are kept, and that a subscriber may lag behind unless it asks for another bound.
        event_block_timeout_s: how long new transfers wait for a subscriber that asked for it.
        max_event_metadata: most keys that something is attached to, for events.
    """

    max_run_keys: int
    max_run_fragments: int
    max_jobs_in_flight: int
    max_waiting_transfers: int
    max_pending_events: int
    event_block_timeout_s: float = 0.05
    max_event_metadata: int = 100_000
