"""ARC, the adaptive replacement cache: recency and frequency, balanced by what was evicted too early.

Source: N. Megiddo and D. S. Modha, "ARC: A Self-Tuning, Low Overhead Replacement Cache", FAST 2003. Its T1 and T2 are
`recent` and `frequent` here, B1 and B2 their ghosts, p the target.
"""

from collections.abc import Collection, Mapping, Sequence, Set
from typing import Any

from aiokvoffload.base import Admission, CachePolicy, OffloadKey, Residents
from aiokvoffload.cache.policies.ghosts import GhostList
from aiokvoffload.cache.policies.recency import SEEDED, RecencyList, Victims


class ARCPolicy(CachePolicy):
    """Keys used once and keys used again are kept in two lists; ghosts of what left each say which is too short.

    Two departures from the paper: a chain is admitted in one step, and where the list that should give a victim has
    only pinned or protected keys, the other gives it. A store that does not fit is cut to its leading part.

    Args:
        residents: the pool whose keys it orders; there are never more ghosts than it has slots.
    """

    __slots__ = (
        "_capacity",
        "_frequent",
        "_frequent_ghosts",
        "_is_frequent",
        "_recent",
        "_recent_ghosts",
        "_target",
    )

    def __init__(self, residents: Residents) -> None:
        self._capacity = residents.capacity
        self._is_frequent = bytearray(residents.capacity)  # by slot
        self._target = 0.0  # how many keys `recent` should have, up to the capacity
        self._recent = RecencyList(residents)
        self._frequent = RecencyList(residents)
        self._recent_ghosts = GhostList(residents.capacity)
        self._frequent_ghosts = GhostList(2 * residents.capacity)

    def access(
        self, resident: Sequence[OffloadKey], slots: Sequence[int], absent: Sequence[OffloadKey], chain: int
    ) -> None:
        """Make resident keys frequent, and the chain the most recent; let ghosts among the others move the target."""
        if slots:
            self.remove(slots)
            self._add_frequent(resident, slots, chain)
        elif absent:
            self._frequent.touch((), (), chain)
        else:
            return
        self._recent.touch((), (), chain)
        too_early = len(self._recent_ghosts.present(absent)), len(self._frequent_ghosts.present(absent))
        if any(too_early):
            self._adapt(*too_early)

    def admit(self, keys: Sequence[OffloadKey], room: int, protected: Set[OffloadKey], chain: int) -> Admission | None:
        """Admit the leading part that fits (cases II to IV)."""
        missing = max(0, len(keys) - room)
        # Where fewer can leave than are missing, all that can do, whichever list they are in.
        returning_count = len(self._recent_ghosts.present(keys)) + len(self._frequent_ghosts.present(keys))
        from_recent = self._recent_victims(missing, len(keys) - returning_count)
        victims, slots = self._evict(missing, from_recent, protected, chain)
        accepted = len(keys) - missing + len(slots)
        return Admission(accepted, victims, slots) if accepted else None

    def place(self, keys: Sequence[OffloadKey], slots: Sequence[int], chain: int) -> None:
        """Take ghosts as frequent, the others as recent."""
        returning = {*self._recent_ghosts.remove(keys), *self._frequent_ghosts.remove(keys)}
        if returning:
            frequent = {key: slot for key, slot in zip(keys, slots, strict=True) if key in returning}
            recent = {key: slot for key, slot in zip(keys, slots, strict=True) if key not in returning}
            self._add_frequent(list(frequent), list(frequent.values()), chain)
            self._add_recent(list(recent), list(recent.values()), chain)
        else:
            self._add_recent(keys, slots, chain)
        self._trim_ghosts()

    def count_victims(self, count: int, protected: Set[OffloadKey], chain: int) -> int:
        """How many of `count` victims there are."""
        recent_count = self._recent.count_victims(count, protected, chain)
        return recent_count + self._frequent.count_victims(count - recent_count, protected, chain)

    def remove(self, slots: Sequence[int]) -> None:
        """Forget slots, without leaving ghosts: they did not leave for want of room."""
        self._recent.remove([slot for slot in slots if not self._is_frequent[slot]])
        self._frequent.remove([slot for slot in slots if self._is_frequent[slot]])

    def release(self, slots: Collection[int]) -> None:
        """Let slots leave again; their place in the order is that of their last use."""
        self._recent.release(slots)
        self._frequent.release(slots)

    def clear(self) -> Sequence[dict[Any, Any]]:
        """Forget every key, every ghost and the target."""
        self._target = 0.0
        self._recent_ghosts.clear()
        self._frequent_ghosts.clear()
        return [*self._recent.clear(), *self._frequent.clear()]

    def export(self) -> Mapping[int, OffloadKey]:
        """All keys, recent ones before frequent ones, each the oldest chain first, its tail in front."""
        return self._recent.residents() | self._frequent.residents()

    def seed(self, residents: Mapping[int, OffloadKey]) -> None:
        """Take over an order; what was frequent there is recent here until it is used again."""
        self._add_recent(list(residents.values())[::-1], list(residents)[::-1], SEEDED)

    def __len__(self) -> int:
        return len(self._recent) + len(self._frequent)

    def __repr__(self) -> str:
        return (
            f"ARCPolicy({len(self._recent)} recent, {len(self._frequent)} frequent, target {self._target:.0f}, "
            f"{len(self._recent_ghosts)} + {len(self._frequent_ghosts)} ghosts)"
        )

    def _add_recent(self, keys: Sequence[OffloadKey], slots: Sequence[int], chain: int) -> None:
        for slot in slots:
            self._is_frequent[slot] = False
        self._recent.add(keys, slots, chain)

    def _add_frequent(self, keys: Sequence[OffloadKey], slots: Sequence[int], chain: int) -> None:
        for slot in slots:
            self._is_frequent[slot] = True
        self._frequent.add(keys, slots, chain)

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

    def _evict(self, count: int, from_recent: int, protected: Set[OffloadKey], chain: int) -> Victims:
        recent, slots = self._recent.evict(from_recent, protected, chain)
        frequent, frequent_slots = self._frequent.evict(count - len(slots), protected, chain)
        slots += frequent_slots
        more, more_slots = self._recent.evict(count - len(slots), protected, chain)
        self._recent_ghosts.add(recent + more)
        self._frequent_ghosts.add(frequent)
        return recent + frequent + more, slots + more_slots

    def _trim_ghosts(self) -> None:
        """The paper's bounds: recent and its ghosts up to the capacity, all together up to twice that."""
        recent_surplus = len(self._recent) + len(self._recent_ghosts) - self._capacity
        self._recent_ghosts.forget_oldest(recent_surplus)
        surplus = len(self) + len(self._recent_ghosts) + len(self._frequent_ghosts) - 2 * self._capacity
        self._frequent_ghosts.forget_oldest(surplus)
