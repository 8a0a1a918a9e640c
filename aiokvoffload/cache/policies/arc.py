"""ARC, the adaptive replacement cache: recency and frequency, balanced by what was evicted too early.

Source: N. Megiddo and D. S. Modha, "ARC: A Self-Tuning, Low Overhead Replacement Cache", FAST 2003. Its T1 and T2 are
`recent` and `frequent` here, B1 and B2 their ghosts, p the target.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from aiokvoffload.base import Admission, CachePolicy, OffloadKey
from aiokvoffload.cache.policies.ghosts import GhostList
from aiokvoffload.cache.policies.recency import SEEDED, RecencyList


class ARCPolicy(CachePolicy):
    """Keys used once and keys used again are kept in two lists; ghosts of what left each say which is too short.

    Two departures from the paper: a chain is admitted in one step, and where the list that should give a victim has
    only pinned or protected keys, the other gives it. A store that does not fit is cut to its leading part.

    Args:
        capacity: most keys that can be resident at once; there are never more ghosts than that.
    """

    __slots__ = ("_capacity", "_frequent", "_frequent_ghosts", "_pinned", "_recent", "_recent_ghosts", "_target")

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._target = 0.0  # how many keys `recent` should have, up to the capacity
        self._pinned: set[OffloadKey] = set()
        self._recent = RecencyList(self._pinned)
        self._frequent = RecencyList(self._pinned)
        self._recent_ghosts = GhostList()
        self._frequent_ghosts = GhostList()

    def access(self, keys: Sequence[OffloadKey], chain: int) -> None:
        """Make resident keys frequent, and the chain the most recent; let ghosts among the others move the target."""
        if not keys:
            return
        moved, again = self._recent.remove(keys), self._frequent.remove(keys)
        if moved and again:
            resident = {*moved, *again}
            moved = [key for key in keys if key in resident]
        self._frequent.add(moved or again, chain)
        self._frequent.renew(chain)
        self._recent.renew(chain)
        too_early = len(self._recent_ghosts.present(keys)), len(self._frequent_ghosts.present(keys))
        if any(too_early):
            self._adapt(*too_early)

    def admit(
        self, keys: Sequence[OffloadKey], room: int, protected: Collection[OffloadKey], chain: int
    ) -> Admission | None:
        """Admit the leading part that fits: ghosts as frequent, the others as recent (cases II to IV)."""
        missing = max(0, len(keys) - room)
        # Where fewer can leave than are missing, all that can do, whichever list they are in.
        returning_count = len(self._recent_ghosts.present(keys)) + len(self._frequent_ghosts.present(keys))
        from_recent = self._recent_victims(missing, len(keys) - returning_count)
        victims = self._evict(missing, from_recent, protected, chain)
        accepted = keys[: len(keys) - missing + len(victims)]
        if not accepted:
            return None
        returning = {*self._recent_ghosts.remove(accepted), *self._frequent_ghosts.remove(accepted)}
        new = [key for key in accepted if key not in returning] if returning else accepted
        self._recent.add(new, chain)
        self._frequent.add([key for key in accepted if key in returning], chain)
        self._trim_ghosts()
        return Admission(len(accepted), victims)

    def count_victims(self, count: int, protected: Collection[OffloadKey], chain: int) -> int:
        """How many of `count` victims there are."""
        recent_count = self._recent.count_victims(count, protected, chain)
        return recent_count + self._frequent.count_victims(count - recent_count, protected, chain)

    def remove(self, keys: Iterable[OffloadKey]) -> None:
        """Forget resident keys, without leaving ghosts: they did not leave for want of room."""
        keys = list(keys)
        self._pinned.difference_update(self._recent.remove(keys), self._frequent.remove(keys))

    def pin(self, keys: Iterable[OffloadKey]) -> None:
        """Keep keys from leaving."""
        self._pinned.update(keys)

    def unpin(self, keys: Iterable[OffloadKey]) -> None:
        """Let keys leave again; their place in the order is that of their last use."""
        keys = list(keys)
        self._pinned.difference_update(keys)
        self._recent.unpin(keys)
        self._frequent.unpin(keys)

    def clear(self) -> Sequence[dict[Any, Any]]:
        """Forget every key, every ghost and the target."""
        self._target = 0.0
        self._pinned.clear()
        ghosts = self._recent_ghosts.clear(), self._frequent_ghosts.clear()
        return [*self._recent.clear(), *self._frequent.clear(), *ghosts]

    def export(self) -> Sequence[OffloadKey]:
        """All keys, recent ones before frequent ones, each the oldest chain first, its tail in front."""
        return [*self._recent, *self._frequent]

    def seed(self, keys: Sequence[OffloadKey]) -> None:
        """Take over an order; what was frequent there is recent here until it is used again."""
        self._recent.add(keys[::-1], SEEDED)

    def __len__(self) -> int:
        return len(self._recent) + len(self._frequent)

    def __repr__(self) -> str:
        return (
            f"ARCPolicy({len(self._recent)} recent, {len(self._frequent)} frequent, target {self._target:.0f}, "
            f"{len(self._recent_ghosts)} + {len(self._frequent_ghosts)} ghosts, {len(self._pinned)} pinned)"
        )

    def _adapt(self, recent_count: int, frequent_count: int) -> None:
        """Move the target for ghosts that were used: each says that its list was too short (cases II and III)."""
        recent_ghosts, frequent_ghosts = len(self._recent_ghosts), len(self._frequent_ghosts)
        if recent_count:
            self._target += recent_count * max(1.0, frequent_ghosts / recent_ghosts)
        if frequent_count:
            self._target -= frequent_count * max(1.0, recent_ghosts / frequent_ghosts)
        self._target = min(max(self._target, 0.0), float(self._capacity))

    def _recent_victims(self, leaving: int, new_count: int) -> int:
        """How many of the victims `recent` should give so that it ends at its target (the paper's REPLACE)."""
        surplus = len(self._recent) + new_count - self._target
        return min(leaving, max(0, round(surplus)))

    def _evict(self, count: int, from_recent: int, protected: Collection[OffloadKey], chain: int) -> list[OffloadKey]:
        recent = self._recent.evict(from_recent, protected, chain)
        frequent = self._frequent.evict(count - len(recent), protected, chain)
        recent += self._recent.evict(count - len(recent) - len(frequent), protected, chain)
        self._recent_ghosts.add(recent)
        self._frequent_ghosts.add(frequent)
        return recent + frequent

    def _trim_ghosts(self) -> None:
        """The paper's bounds: recent and its ghosts up to the capacity, all together up to twice that."""
        recent_surplus = len(self._recent) + len(self._recent_ghosts) - self._capacity
        self._recent_ghosts.forget_oldest(recent_surplus)
        surplus = len(self) + len(self._recent_ghosts) + len(self._frequent_ghosts) - 2 * self._capacity
        self._frequent_ghosts.forget_oldest(surplus)
