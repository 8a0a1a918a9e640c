"""SIEVE: one queue, one bit for each key, and a hand that goes from the oldest to the newest and takes what is unused.

Source: Y. Zhang, J. Yang, Y. Yue, Y. Vigfusson and K. V. Rashmi, "SIEVE is Simpler than LRU: an Efficient Turn-Key
Eviction Algorithm for Web Caches", NSDI 2024.
"""

from collections.abc import Sequence, Set
from itertools import count as counted

from aiokvoffload.base import OffloadKey, Residents
from aiokvoffload.cache.policies.layers import LayeredPolicy
from aiokvoffload.cache.policies.recency import RecencyList
from aiokvoffload.cache.policies.runs import Victims

FIRST_REQUEUED = -3
"""What a hand passes over is numbered as chains of its own from here down; callers count from 0."""


def look_limit(count: int) -> int:
    """How many keys a call may look at for so many victims: some 100 µs more than the victims themselves (I10)."""
    return 4 * count + 256


class SIEVEPolicy(LayeredPolicy):
    """What the hand has passed and what is ahead of it lie in two lists: a queue cannot be entered in the middle.

    Departures from the paper: a chain is a unit that moves to the queue's end when it grows, the hand meets its tail
    first, and one call looks at a bounded number of keys, after which uses count no more.

    Args:
        residents: the pool whose keys it orders.
    """

    __slots__ = ("_ahead", "_is_used", "_passed")

    def __init__(self, residents: Residents) -> None:
        super().__init__(residents)
        self._is_used = bytearray(residents.capacity)  # by slot, since the hand passed it
        self._passed = counted(FIRST_REQUEUED, -1)
        self._ahead = 0  # layer ahead of the hand; the other one, of 0 and 1, is what it has passed

    def access(
        self, resident: Sequence[OffloadKey], slots: Sequence[int], absent: Sequence[OffloadKey], chain: int
    ) -> None:
        """Mark what is resident as used; nothing moves."""
        is_used = self._is_used
        for slot in slots:
            is_used[slot] = True

    def place(self, keys: Sequence[OffloadKey], slots: Sequence[int], chain: int) -> None:
        """Put the slots at the end of the queue, and their chain with them."""
        for slot in slots:
            self._is_used[slot] = False
        self.layers[self._ahead].add(keys, slots, chain)

    def evict(self, count: int, protected: Set[OffloadKey], chain: int) -> Victims:
        """Move the hand over what is used, which it unmarks, and take what is not."""
        victims: Victims = [], []
        limit = look_limit(count)
        while (missing := count - len(victims[1])) > 0:
            keys, slots = self.layers[self._ahead].evict(missing, protected, chain)
            if not slots:
                if not self.layers[1 - self._ahead].count_victims(1, protected, chain):
                    break
                self._ahead = 1 - self._ahead  # the hand begins again; what it could not take counts as passed
                continue
            limit -= len(slots)
            self._judge(keys, slots, victims, is_hasty=limit < 0)
        if not self.layers[self._ahead]:  # it begins again before newer keys come, which are the last to be looked at
            self._ahead = 1 - self._ahead
        return victims

    def in_order(self) -> list[RecencyList]:
        """What is ahead of the hand, then what it has passed."""
        return [self.layers[self._ahead], self.layers[1 - self._ahead]]

    def _judge(self, keys: list[OffloadKey], slots: list[int], victims: Victims, *, is_hasty: bool) -> None:
        is_used, passed = self._is_used, dict[int, OffloadKey]()
        for key, slot in zip(keys, slots, strict=True):
            if is_used[slot] and not is_hasty:
                is_used[slot] = False
                passed[slot] = key
            else:
                victims[0].append(key)
                victims[1].append(slot)
        if passed:
            self.layers[1 - self._ahead].add(list(passed.values())[::-1], list(passed)[::-1], next(self._passed))

    def __repr__(self) -> str:
        ahead, behind = self.in_order()
        return f"SIEVEPolicy({len(ahead)} ahead of the hand, {len(behind)} behind)"
