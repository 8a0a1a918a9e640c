"""ARC, the adaptive replacement cache: recency and frequency, balanced by what was evicted too early.

Source: N. Megiddo and D. S. Modha, "ARC: A Self-Tuning, Low Overhead Replacement Cache", FAST 2003. Its T1 and T2 are
`recent` and `frequent` here, B1 and B2 their ghosts, p the target.
"""

from collections.abc import Sequence, Set
from typing import Any

from aiokvoffload.base import Admission, OffloadKey, Residents
from aiokvoffload.cache.policies.ghosts import GhostList, fingerprints
from aiokvoffload.cache.policies.layers import LayeredPolicy
from aiokvoffload.cache.policies.runs import Victims

_RECENT, _FREQUENT = 0, 1


class ARCPolicy(LayeredPolicy):
    """Keys used once and keys used again are kept in two lists; ghosts of what left each say which is too short.

    Three departures from the paper: a chain is admitted in one step, by a target rounded to whole keys; and where the
    list that should give a victim has only pinned or protected keys, the other gives it. A store that does not fit is
    cut to its leading part.

    Args:
        residents: the pool whose keys it orders; there are never more ghosts than it has slots.
    """

    __slots__ = (
        "_capacity",
        "_frequent",
        "_frequent_ghosts",
        "_recent",
        "_recent_ghosts",
        "_target",
    )

    def __init__(self, residents: Residents) -> None:
        super().__init__(residents)
        self._capacity = residents.capacity
        self._target = 0.0  # how many keys `recent` should have, up to the capacity
        self._recent, self._frequent = self.layers[_RECENT], self.layers[_FREQUENT]
        self._recent_ghosts = GhostList(residents.capacity)
        self._frequent_ghosts = GhostList(residents.capacity)

    def access(
        self, resident: Sequence[OffloadKey], slots: Sequence[int], absent: Sequence[OffloadKey], chain: int
    ) -> None:
        """Make resident keys frequent, and the chain the most recent; let ghosts among the others move the target."""
        if slots:
            self.remove(slots)
            self.layers[_FREQUENT].add(resident, slots, chain)
        elif absent:
            self._frequent.renew(chain)
        else:
            return
        self._recent.renew(chain)
        tags = fingerprints(absent)
        too_early = self._recent_ghosts.count_present(tags), self._frequent_ghosts.count_present(tags)
        if any(too_early):
            self._adapt(*too_early)

    def admit(
        self,
        keys: Sequence[OffloadKey],
        room: int,
        protected: Set[OffloadKey],
        chain: int,
        *,
        may_decline: bool = True,
    ) -> Admission | None:
        """Admit the leading part that fits (cases II to IV)."""
        missing = max(0, len(keys) - room)
        # Where fewer can leave than are missing, all that can do, whichever list they are in.
        tags = fingerprints(keys)
        returning_count = self._recent_ghosts.count_present(tags) + self._frequent_ghosts.count_present(tags)
        from_recent = self._recent_victims(missing, len(keys) - returning_count)
        victims, slots = self._evict(missing, from_recent, protected, chain)
        accepted = len(keys) - missing + len(slots)
        return Admission(accepted, victims, slots) if accepted else None

    def place(self, keys: Sequence[OffloadKey], slots: Sequence[int], chain: int) -> None:
        """Take ghosts as frequent, the others as recent."""
        tags = fingerprints(keys)
        were_ghosts = zip(self._recent_ghosts.remove(tags), self._frequent_ghosts.remove(tags), strict=True)
        self.add_each(keys, slots, [_FREQUENT if any(was) else _RECENT for was in were_ghosts], chain)
        self._trim_ghosts()

    def clear(self) -> Sequence[dict[Any, Any]]:
        """Forget every key, every ghost and the target."""
        self._target = 0.0
        self._recent_ghosts.clear()
        self._frequent_ghosts.clear()
        containers = super().clear()
        self._recent, self._frequent = self.layers[_RECENT], self.layers[_FREQUENT]
        return containers

    def __repr__(self) -> str:
        return (
            f"ARCPolicy({len(self._recent)} recent, {len(self._frequent)} frequent, target {self._target:.0f}, "
            f"{len(self._recent_ghosts)} + {len(self._frequent_ghosts)} ghosts)"
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

    def evict(self, count: int, protected: Set[OffloadKey], chain: int) -> Victims:
        """Take recent keys down to the target, then frequent ones."""
        return self._evict(count, self._recent_victims(count, 0), protected, chain)

    def _evict(self, count: int, from_recent: int, protected: Set[OffloadKey], chain: int) -> Victims:
        recent, slots = self._recent.evict(from_recent, protected, chain)
        frequent, frequent_slots = self._frequent.evict(count - len(slots), protected, chain)
        slots += frequent_slots
        more, more_slots = self._recent.evict(count - len(slots), protected, chain)
        self._recent_ghosts.add(fingerprints(recent + more))
        self._frequent_ghosts.add(fingerprints(frequent))
        return recent + frequent + more, slots + more_slots

    def _trim_ghosts(self) -> None:
        """The paper's bounds: recent and its ghosts up to the capacity, all together up to twice that."""
        recent_surplus = len(self._recent) + len(self._recent_ghosts) - self._capacity
        self._recent_ghosts.forget_oldest(recent_surplus)
        surplus = len(self) + len(self._recent_ghosts) + len(self._frequent_ghosts) - 2 * self._capacity
        self._frequent_ghosts.forget_oldest(surplus)
