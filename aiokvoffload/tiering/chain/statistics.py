"""What the chain can say about one tier in numbers."""

from dataclasses import dataclass
from typing import Any


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
        loads_waiting: calls that wait for their turn.
        stores_waiting: calls that wait for their turn.
        calls_in_flight: calls that have not returned, late ones included.
        calls_late: those of them whose deadline has passed: their buffers are quarantined.
        store_delay_s: how long a store that came now would wait.
        tier: the tier's own record.
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
    loads_waiting: int
    stores_waiting: int
    calls_in_flight: int
    calls_late: int
    store_delay_s: float
    tier: Any


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
