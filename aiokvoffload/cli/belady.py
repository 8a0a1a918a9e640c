"""The most that any policy could serve of a trace: it knows what is asked for next.

Source: L. A. Belady, "A Study of Replacement Algorithms for a Virtual-Storage Computer", 1966; with bypass, since a
cache need not keep what it is offered. It counts every resident block that is asked for, behind a missing one too, so
it bounds what leading blocks can be served.
"""

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush

_NEVER = 1 << 62


def belady_hits(chains: Sequence[Sequence[int]], capacity: int) -> int:
    """Blocks of all chains that a cache of so many blocks could have served, one after the other."""
    next_uses = _next_uses([block for chain in chains for block in chain])
    resident: dict[int, int] = {}  # block to its next use
    latest: list[tuple[int, int]] = []  # (minus next use, block), with entries of the past among them
    hits = 0
    for block, next_use in next_uses:
        hits += block in resident
        if block not in resident and len(resident) == capacity:
            _drop_stale(latest, resident)
            if -latest[0][0] <= next_use:
                continue
            del resident[heappop(latest)[1]]
        resident[block] = next_use
        heappush(latest, (-next_use, block))
    return hits


def _next_uses(blocks: Sequence[int]) -> Iterable[tuple[int, int]]:
    later: dict[int, int] = {}
    next_uses = []
    for time in range(len(blocks) - 1, -1, -1):
        next_uses.append(later.get(blocks[time], _NEVER))
        later[blocks[time]] = time
    return zip(blocks, reversed(next_uses), strict=True)


def _drop_stale(latest: list[tuple[int, int]], resident: dict[int, int]) -> None:
    while resident.get(latest[0][1]) != -latest[0][0]:
        heappop(latest)
