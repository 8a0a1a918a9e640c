"""Least recently used: the chain whose last use is longest ago leaves first, its tail before its head."""

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from aiokvoffload.base import Admission, CachePolicy, OffloadKey
from aiokvoffload.cache.policies.recency import SEEDED, RecencyList


class LRUPolicy(CachePolicy):
    """Evicts by last use. A store that does not fit is cut: its leading part is of use without its tail.

    Args:
        capacity: most keys that can be resident at once.
    """

    __slots__ = ("_order", "_pinned")

    def __init__(self, capacity: int) -> None:
        self._pinned: set[OffloadKey] = set()
        self._order = RecencyList(self._pinned)

    def access(self, keys: Sequence[OffloadKey], chain: int) -> None:
        """Make the chain, with resident keys, the most recent; absent ones leave no trace."""
        self._order.touch(keys, chain)

    def admit(
        self, keys: Sequence[OffloadKey], room: int, protected: Collection[OffloadKey], chain: int
    ) -> Admission | None:
        """Admit the leading part that fits; the tails of the oldest chains leave."""
        victims: Sequence[OffloadKey] = ()
        if (missing := len(keys) - room) > 0:
            victims = self._order.evict(missing, protected, chain)
            keys = keys[: room + len(victims)]
        if not keys:
            return None
        self._order.add(keys, chain)
        return Admission(len(keys), victims)

    def count_victims(self, count: int, protected: Collection[OffloadKey], chain: int) -> int:
        """How many of `count` victims there are."""
        return self._order.count_victims(count, protected, chain)

    def remove(self, keys: Iterable[OffloadKey]) -> None:
        """Forget resident keys."""
        self._pinned.difference_update(self._order.remove(list(keys)))

    def pin(self, keys: Iterable[OffloadKey]) -> None:
        """Keep keys from leaving."""
        self._pinned.update(keys)

    def unpin(self, keys: Iterable[OffloadKey]) -> None:
        """Let keys leave again; their place in the order is that of their last use."""
        keys = list(keys)
        self._pinned.difference_update(keys)
        self._order.unpin(keys)

    def clear(self) -> Sequence[dict[Any, Any]]:
        """Forget every key."""
        self._pinned.clear()
        return self._order.clear()

    def export(self) -> Sequence[OffloadKey]:
        """All keys, the oldest chain first, each tail first."""
        return list(self._order)

    def seed(self, keys: Sequence[OffloadKey]) -> None:
        """Take over an order, as that of one chain."""
        self._order.add(keys[::-1], SEEDED)

    def __len__(self) -> int:
        return len(self._order)

    def __repr__(self) -> str:
        return f"LRUPolicy({len(self)} keys, {len(self._pinned)} pinned)"
