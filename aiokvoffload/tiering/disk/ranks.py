"""Numbers by which rows stand in the order in which they were stored, over restarts too."""

import time
from collections.abc import Callable

POSITION_BITS = 20
"""Of a rank, for the place in its chain."""
_YEAR_MS = 366 * 86_400_000


class Ranks:
    """Gives each store of a chain a number that is higher than all before, and each key in it one of its own.

    The number is the time in milliseconds, unless that would not be higher: so a row says when it was stored.

    Args:
        last_rank: the highest that was given in an earlier run.
        now_ns: the time, in nanoseconds since 1970.
    """

    __slots__ = ("_last", "_now_ns")

    def __init__(self, last_rank: int, now_ns: Callable[[], int] = time.time_ns) -> None:
        self._last = chain_of(last_rank)
        self._now_ns = now_ns

    def take(self, count: int) -> range:
        """Ranks for so many keys of a chain, head first."""
        self._last = max(self._last + 1, self._now_ns() // 1_000_000)
        first = self._last << POSITION_BITS
        self._last += count >> POSITION_BITS
        return range(first, first + count)


def highest_rank() -> int:
    """What no rank can exceed unless a clock was wrong by a year."""
    return (time.time_ns() // 1_000_000 + _YEAR_MS) << POSITION_BITS


def chain_of(rank: int) -> int:
    """The number of the chain that a rank belongs to: milliseconds since 1970, or a little more."""
    return rank >> POSITION_BITS
