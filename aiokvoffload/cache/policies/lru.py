"""Least recently used: the chain whose last use is longest ago leaves first, its tail before its head."""

from collections.abc import Collection, Mapping, Sequence, Set
from typing import Any

from aiokvoffload.base import Admission, CachePolicy, OffloadKey, Residents
from aiokvoffload.cache.policies.recency import SEEDED, RecencyList


class LRUPolicy(CachePolicy):
    """Evicts by last use. A store that does not fit is cut: its leading part is of use without its tail.

    Args:
        residents: the pool whose keys it orders.
    """

    __slots__ = ("_order",)

    def __init__(self, residents: Residents) -> None:
        self._order = RecencyList(residents)

    def access(
        self, resident: Sequence[OffloadKey], slots: Sequence[int], absent: Sequence[OffloadKey], chain: int
    ) -> None:
        """Make the chain, with what is resident, the most recent; what is absent leaves no trace."""
        if slots or absent:
            self._order.touch(resident, slots, chain)

    def admit(
        self,
        keys: Sequence[OffloadKey],
        room: int,
        protected: Set[OffloadKey],
        chain: int,
        *,
        may_decline: bool = True,
    ) -> Admission | None:
        """Admit the leading part that fits; the tails of the oldest chains leave."""
        missing = len(keys) - room
        if missing <= 0:
            return Admission(len(keys), (), ())
        victims, slots = self._order.evict(missing, protected, chain)
        accepted = room + len(slots)
        return Admission(accepted, victims, slots) if accepted else None

    def place(self, keys: Sequence[OffloadKey], slots: Sequence[int], chain: int) -> None:
        """Put the slots at the end of their chain, which becomes the most recent one."""
        self._order.add(keys, slots, chain)

    def count_victims(self, count: int, protected: Set[OffloadKey], chain: int) -> int:
        """How many of `count` victims there are."""
        return self._order.count_victims(count, protected, chain)

    def remove(self, slots: Sequence[int]) -> None:
        """Forget slots."""
        self._order.remove(slots)

    def release(self, slots: Collection[int]) -> None:
        """Let slots leave again; their place in the order is that of their last use."""
        self._order.release(slots)

    def clear(self) -> Sequence[dict[Any, Any]]:
        """Forget every slot."""
        return self._order.clear()

    def export(self) -> Mapping[int, OffloadKey]:
        """All keys, the oldest chain first, each tail first."""
        return self._order.residents()

    def first_to_leave(self, count: int) -> Sequence[tuple[int, OffloadKey]]:
        """The tail of the oldest chain, and on from there."""
        return self._order.oldest(count)

    def rest_of_run(self, slot: int) -> tuple[Sequence[OffloadKey], Sequence[int]]:
        """What is behind it in its run."""
        return self._order.rest_of_run(slot)

    def seed(self, residents: Mapping[int, OffloadKey]) -> None:
        """Take over an order, as that of one chain."""
        self._order.add(list(residents.values())[::-1], list(residents)[::-1], SEEDED)

    def __len__(self) -> int:
        return len(self._order)

    def __repr__(self) -> str:
        return f"LRUPolicy({self._order!r})"
