"""What the disk tier can say about itself in numbers."""

from dataclasses import dataclass

from aiokvoffload.cache.pool import PoolStatistics


@dataclass(slots=True)
class DiskCounts:
    """The growing part of `DiskStatistics`, as it is counted; keys since the tier was opened."""

    stored: int = 0
    present: int = 0
    refused: int = 0
    dropped: int = 0
    failed_stores: int = 0
    evicted: int = 0
    loaded: int = 0
    missed: int = 0
    corrupt: int = 0
    failed_loads: int = 0
    recovered: int = 0
    cleared: int = 0
    stored_bytes: int = 0
    loaded_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskStatistics:
    """A snapshot.

    Attributes:
        pools: slots by state, one entry per pool; `quarantined` ones include those whose rows are not deleted, or not
            read yet.
        is_direct: whether the page cache is bypassed everywhere.
        recovering: whether rows of an earlier run are still being read.
        trouble: why the index cannot be written now, and nothing is stored, or else why it cannot be read to its end
            now; empty if it can.
        calls_in_flight: stores, loads and resets that have not returned.
        waiting_loads: jobs of I/O threads that none has taken yet.
        waiting_stores: the same for stores.
        waiting_rows: changes of rows not being written yet.
        commits: transactions of the index.
        failed_commits: attempts that failed.
        lost_indexes: damaged indexes that were thrown away at the opening: 0 or 1.
        stored: keys written.
        present: keys that were there already when they were to be stored.
        refused: keys that found no room, or whose store a reset made void.
        dropped: keys refused because too many waited.
        failed_stores: keys that could not be written.
        evicted: keys that made room.
        loaded: keys read, and found right.
        missed: keys asked for that are not here.
        corrupt: keys read, and found wrong.
        failed_loads: keys that could not be read.
        recovered: keys known from an earlier run.
        cleared: keys that were readable at a reset.
        stored_bytes: payload written.
        loaded_bytes: payload read, and found right.
        policy: name of the cache policy.
    """

    pools: tuple[PoolStatistics, ...]
    is_direct: bool
    recovering: bool
    trouble: str
    calls_in_flight: int
    waiting_loads: int
    waiting_stores: int
    waiting_rows: int
    commits: int
    failed_commits: int
    lost_indexes: int
    stored: int
    present: int
    refused: int
    dropped: int
    failed_stores: int
    evicted: int
    loaded: int
    missed: int
    corrupt: int
    failed_loads: int
    recovered: int
    cleared: int
    stored_bytes: int
    loaded_bytes: int
    policy: str = ""
