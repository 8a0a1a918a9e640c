"""What the service answers: records of counts and keys, no behaviour."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from aiokvoffload.base import OffloadKey
from aiokvoffload.cache.statistics import ManagerStatistics
from aiokvoffload.cpu.worker_statistics import WorkerStatistics
from aiokvoffload.events import EventBusStatistics
from aiokvoffload.histogram import NO_VALUES, HistogramStatistics
from aiokvoffload.tiering.chain.statistics import TierStatistics


@dataclass(frozen=True, slots=True)
class LoadResult:
    """How a load ended.

    Attributes:
        served_by_group: for each KV-cache group, how many leading keys of it arrived.
        failed_keys: the keys that did not arrive, in call order: the caller recomputes them. A key behind the first
            failure of its group counts as failed whatever became of it.
        sources: from which tier each served key came: for each run of keys from one tier, in call order, its name and
            how many.
        loaded_bytes: bytes that arrived, over all workers.
        error: why a copy failed, for people; empty if all arrived, or keys were merely absent.
    """

    served_by_group: tuple[int, ...]
    failed_keys: tuple[OffloadKey, ...]
    sources: tuple[tuple[str, int], ...]
    loaded_bytes: int
    error: str = ""

    @property
    def served(self) -> int:
        """Number of keys that arrived; with one group, the length of the served prefix."""
        return sum(self.served_by_group)

    def __str__(self) -> str:
        return f"{self.served} served, {len(self.failed_keys)} failed"


@dataclass(frozen=True, slots=True)
class StoreResult:
    """How a store ended.

    Attributes:
        stored: keys that this call, or a running store of the same key that it joined, made resident.
        present: keys that were resident already.
        refused_keys: keys that are not kept: no room could be made, they were offered too seldom yet, or the request
            was left by an exception or a cancellation before their turn came.
        failed_keys: keys whose copy failed, or that a reset overtook; nothing of them is left.
        stored_bytes: bytes copied for this call, over all workers.
        error: why a copy failed, for people; empty if none did.
    """

    stored: int
    present: int
    refused_keys: tuple[OffloadKey, ...]
    failed_keys: tuple[OffloadKey, ...]
    stored_bytes: int
    error: str = ""

    def __str__(self) -> str:
        return (
            f"{self.stored} stored, {self.present} present, {len(self.refused_keys)} refused, "
            f"{len(self.failed_keys)} failed"
        )


@dataclass(frozen=True, slots=True)
class ResetResult:
    """What a reset cleared.

    Attributes:
        cleared_by_tier: for each tier that is empty now, its name and how many keys it had.
        deferred_tiers: tiers that could not be cleared because they do not answer. Nothing is served from them, and
            they are cleared before they are used again by this service; if it is closed before, what they keep on disk
            is still there.
    """

    cleared_by_tier: tuple[tuple[str, int], ...]
    deferred_tiers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class KeyStatistics:
    """What became of the keys that requests asked for, since the service was opened.

    Attributes:
        looked_up: keys given to lookups.
        found: those of them that a lookup counted; of several groups, those up to the common position.
        served_by_tier: for each tier its name, and how many keys loads were served that were found there.
        unserved: keys given to loads that were not served.
    """

    looked_up: int = 0
    found: int = 0
    served_by_tier: tuple[tuple[str, int], ...] = ()
    unserved: int = 0


@dataclass(slots=True)
class KeyCounts:
    """`KeyStatistics`, as it is counted: once for each call, however many keys it has."""

    looked_up: int = 0
    found: int = 0
    served_by_tier: dict[str, int] = field(default_factory=dict)
    unserved: int = 0

    def looked(self, keys: int, found: int) -> None:
        """Count one lookup."""
        self.looked_up += keys
        self.found += found

    def loaded(self, sources: Iterable[tuple[str, int]], unserved: int) -> None:
        """Count one load."""
        for tier, keys in sources:
            self.served_by_tier[tier] = self.served_by_tier.get(tier, 0) + keys
        self.unserved += unserved

    def statistics(self) -> KeyStatistics:
        """A frozen record of counts."""
        return KeyStatistics(self.looked_up, self.found, tuple(self.served_by_tier.items()), self.unserved)


@dataclass(frozen=True, slots=True)
class ServiceStatistics:
    """One snapshot of everything below the service.

    Attributes:
        requests: requests open now.
        loads: loads accepted so far.
        stores: stores accepted so far.
        jobs_in_flight: transfers submitted and not ended.
        waiting_flows: loads and stores that have not submitted all they have.
        manager: the manager's own record.
        workers: each worker's own record, in rank order.
        events: the event bus's own record.
        tiers: what went to and came from each secondary tier.
        is_open: whether it takes requests.
        keys: what became of the keys that requests asked for.
        loop_blocked: seconds that a timer on the loop was late by, twenty times a second.
        waiting_promotions: chains that wait for room in CPU memory to come up into.
        room_timeouts: chains that waited for room in vain.
    """

    requests: int
    loads: int
    stores: int
    jobs_in_flight: int
    waiting_flows: int
    manager: ManagerStatistics
    workers: tuple[WorkerStatistics, ...]
    events: EventBusStatistics
    tiers: tuple[TierStatistics, ...] = ()
    is_open: bool = True
    keys: KeyStatistics = KeyStatistics()
    loop_blocked: HistogramStatistics = NO_VALUES
    waiting_promotions: int = 0
    room_timeouts: int = 0
