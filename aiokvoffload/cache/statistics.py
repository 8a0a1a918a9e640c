"""What a manager can say about itself in numbers."""

from dataclasses import dataclass

from aiokvoffload.cache.pool import PoolStatistics


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagerStatistics:
    """A snapshot. Counts of keys and resets only grow; keys are counted since the manager was made.

    Attributes:
        pools: slots by state, one entry per pool.
        requests: requests begun and not finished.
        loads_in_flight: loads prepared and not completed.
        stores_in_flight: stores prepared and not completed.
        loaded: keys pinned for a load.
        missed: keys asked of a load that were not readable, or behind one that was not.
        stored: keys made readable.
        evicted: keys that made room for others.
        refused: keys worth storing that found no room.
        filtered: keys not yet offered often enough to be stored, or behind one that was not.
        failed_stores: keys reserved and not written.
        failed_loads: keys dropped since they could not be read.
        cleared: keys readable at a reset.
        resets: number of resets.
        dropped_events: events lost because nobody took them in time.
        policy: name of the cache policy; empty if it is not known.
    """

    pools: tuple[PoolStatistics, ...]
    requests: int
    loads_in_flight: int
    stores_in_flight: int
    loaded: int
    missed: int
    stored: int
    evicted: int
    refused: int
    filtered: int
    failed_stores: int
    failed_loads: int
    cleared: int
    resets: int
    dropped_events: int
    policy: str = ""


@dataclass(slots=True)
class ManagerCounts:
    """The growing part of `ManagerStatistics`, as it is counted."""

    loaded: int = 0
    missed: int = 0
    stored: int = 0
    evicted: int = 0
    refused: int = 0
    filtered: int = 0
    failed_stores: int = 0
    failed_loads: int = 0
    cleared: int = 0
    resets: int = 0
