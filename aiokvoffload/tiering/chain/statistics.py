"""What the chain can say about one tier in numbers."""

from dataclasses import dataclass
from typing import Any

from aiokvoffload.histogram import NO_VALUES, HistogramStatistics


@dataclass(frozen=True, slots=True)
class CallStatistics:
    """What the calls of one direction have moved.

    Attributes:
        calls: calls that have returned, failed ones included.
        moved_bytes: payload of the keys that arrived.
        busy_s: seconds that the calls took, one after the other.
    """

    calls: int = 0
    moved_bytes: int = 0
    busy_s: float = 0.0


@dataclass(slots=True)
class CallCounts:
    """`CallStatistics`, as it is counted."""

    calls: int = 0
    moved_bytes: int = 0
    busy_s: float = 0.0

    def add(self, *, moved_bytes: int, busy_s: float) -> None:
        """Count one call."""
        self.calls += 1
        self.moved_bytes += moved_bytes
        self.busy_s += busy_s

    def statistics(self) -> CallStatistics:
        """A frozen record of counts."""
        return CallStatistics(self.calls, self.moved_bytes, self.busy_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class TierStatistics:
    """A snapshot; keys are counted since the service was opened.

    Attributes:
        name: of the tier.
        serving: whether loads are in service, and so whether lookups count on it.
        storing: whether stores are in service.
        reason: why one of them is not, for people.
        outages: how often loads were taken out of service.
        promoted: keys that it brought up.
        missed: keys that it was asked for and had not any more.
        corrupt: keys that it had, but not as they were stored.
        failed_loads: keys that could not be read, or not in time.
        cascaded: keys that it took.
        present: keys that it had already.
        refused: keys that it did not keep.
        failed_stores: keys that could not be written, or not in time.
        dropped: keys that were not offered to it, because it did not keep up or was out of service.
        dropped_slow: those of them that would have waited for too long.
        dropped_held: those of them for which too many slots were held already, or that came too late.
        dropped_at_close: those of them for which the close had no time.
        loads_waiting: calls that wait for their turn.
        stores_waiting: calls that wait for their turn.
        calls_in_flight: calls that have not returned, late ones included.
        calls_late: those of them whose deadline has passed: their buffers are quarantined.
        store_delay_s: how long a store that came now would wait.
        tier: the tier's own record.
        promotions: what came up in bytes and seconds.
        cascades: what went down in bytes and seconds.
        promotion_latency: seconds from a batch's slots being reserved to its keys being readable, or not.
    """

    name: str
    serving: bool
    storing: bool
    reason: str
    outages: int
    promoted: int
    missed: int
    corrupt: int
    failed_loads: int
    cascaded: int
    present: int
    refused: int
    failed_stores: int
    dropped: int
    dropped_slow: int = 0
    dropped_held: int = 0
    dropped_at_close: int = 0
    loads_waiting: int
    stores_waiting: int
    calls_in_flight: int
    calls_late: int
    store_delay_s: float
    tier: Any
    promotions: CallStatistics = CallStatistics()
    cascades: CallStatistics = CallStatistics()
    promotion_latency: HistogramStatistics = NO_VALUES


@dataclass(slots=True)
class TierCounts:
    """The growing part of `TierStatistics`, as it is counted."""

    promoted: int = 0
    missed: int = 0
    corrupt: int = 0
    failed_loads: int = 0
    cascaded: int = 0
    present: int = 0
    refused: int = 0
    failed_stores: int = 0
    dropped: int = 0
    dropped_at_close: int = 0
