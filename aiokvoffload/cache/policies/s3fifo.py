"""S3-FIFO: a small queue that new keys must outlive, and a large one for those that did.

Source: J. Yang, Y. Zhang, Z. Qiu, Y. Yue and K. V. Rashmi, "FIFO Queues are All You Need for Cache Eviction",
SOSP 2023.
"""

from collections.abc import Sequence, Set
from itertools import count as counted
from typing import Any

from aiokvoffload.base import OffloadKey, Residents
from aiokvoffload.cache.policies.ghosts import GhostList, fingerprints
from aiokvoffload.cache.policies.layers import LayeredPolicy
from aiokvoffload.cache.policies.runs import Victims
from aiokvoffload.cache.policies.sieve import FIRST_REQUEUED, look_limit

_SMALL, _MAIN = 0, 1
_SMALL_SHARE = 0.1
_MOST_USES = 3
_USES_TO_STAY = 2


class S3FIFOPolicy(LayeredPolicy):
    """A key that is used less than twice in the small queue leaves, and is a ghost.

    One that is asked for as a ghost, or was used twice, goes to the main queue, where each use (up to three) is worth
    one more round.

    Departures from the paper: a chain is a unit that moves to the queue's end when it grows, queues give their tails
    first, where one queue has only keys that may not leave the other gives, and one call looks at a bounded number of
    keys, after which uses count no more.

    Args:
        residents: the pool whose keys it orders; there are never more ghosts than it has slots.
    """

    __slots__ = ("_ghosts", "_requeued", "_small_size", "_uses")

    def __init__(self, residents: Residents) -> None:
        super().__init__(residents)
        self._small_size = max(1, int(residents.capacity * _SMALL_SHARE))
        self._ghosts = GhostList(residents.capacity - self._small_size)
        self._uses = bytearray(residents.capacity)  # by slot, since it is in its queue
        self._requeued = counted(FIRST_REQUEUED, -1)

    def access(
        self, resident: Sequence[OffloadKey], slots: Sequence[int], absent: Sequence[OffloadKey], chain: int
    ) -> None:
        """Count a use of what is resident; nothing moves."""
        uses = self._uses
        for slot in slots:
            uses[slot] = min(uses[slot] + 1, _MOST_USES)

    def place(self, keys: Sequence[OffloadKey], slots: Sequence[int], chain: int) -> None:
        """Put ghosts into the main queue, the others into the small one."""
        for slot in slots:
            self._uses[slot] = 0
        self.renew(chain)
        were_ghosts = self._ghosts.remove(fingerprints(keys))
        self.add_each(keys, slots, [_MAIN if was else _SMALL for was in were_ghosts], chain)

    def evict(self, count: int, protected: Set[OffloadKey], chain: int) -> Victims:
        """Take from the small queue while it is longer than it should be, else from the main one."""
        victims: Victims = [], []
        limit = look_limit(count)
        small, main = self.layers[_SMALL], self.layers[_MAIN]
        while (missing := count - len(victims[1])) > 0:
            surplus = len(small) - self._small_size
            looks_at_small = surplus > 0 or not main
            queue, most = (small, min(missing, max(1, surplus))) if looks_at_small else (main, missing)
            keys, slots = queue.evict(most, protected, chain)
            if not slots:
                queue = main if looks_at_small else small
                keys, slots = queue.evict(missing, protected, chain)
                if not slots:
                    break
            limit -= len(slots)
            self._judge(queue is small, keys, slots, victims, is_hasty=limit < 0)
        return victims

    def _judge(
        self, is_small: bool, keys: list[OffloadKey], slots: list[int], victims: Victims, *, is_hasty: bool
    ) -> None:
        uses, worth = self._uses, _USES_TO_STAY if is_small else 1
        stays = [uses[slot] >= worth and not is_hasty for slot in slots]
        left = [key for key, stay in zip(keys, stays, strict=True) if not stay]
        victims[0].extend(left)
        victims[1].extend(slot for slot, stay in zip(slots, stays, strict=True) if not stay)
        if is_small:
            self._ghosts.add(fingerprints(left))
        if len(left) < len(keys):
            kept = {slot: key for slot, key, stay in zip(slots, keys, stays, strict=True) if stay}
            for slot in kept:
                uses[slot] = 0 if is_small else uses[slot] - 1
            self.layers[_MAIN].add(list(kept.values())[::-1], list(kept)[::-1], next(self._requeued))

    def clear(self) -> Sequence[dict[Any, Any]]:
        """Forget every key and every ghost."""
        self._ghosts.clear()
        return super().clear()

    def __repr__(self) -> str:
        small, main = self.layers[_SMALL], self.layers[_MAIN]
        return f"S3FIFOPolicy({len(small)} small, {len(main)} main, {len(self._ghosts)} ghosts)"
