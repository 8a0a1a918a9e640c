"""How often absent keys were offered for storing, so that what is seen once need not be stored."""

from collections import OrderedDict
from collections.abc import Sequence, Set
from itertools import takewhile

from aiokvoffload.base import OffloadKey
from aiokvoffload.cache.chains import split_by_group


class OfferCounter:
    """Counts offers of a bounded number of keys; those not offered for longest are forgotten first.

    A key that is stored stays counted: evicted and offered again, it has proved its reuse already.

    Args:
        threshold: a key is worth storing when it is offered for this many-th time.
        max_keys: most keys counted at once.
    """

    __slots__ = ("_count_by_key", "_max_keys", "_threshold")

    def __init__(self, threshold: int, max_keys: int) -> None:
        self._threshold = threshold
        self._max_keys = max_keys
        self._count_by_key: OrderedDict[OffloadKey, int] = OrderedDict()

    def count(self, keys: Sequence[OffloadKey]) -> None:
        """Count an offer of a chain.

        One longer than the bound is counted from its head on, so that none of its keys pushes out another.
        """
        for key in reversed(keys[: self._max_keys]):
            self._count_by_key[key] = min(self._count_by_key.pop(key, 0) + 1, self._threshold)
        while len(self._count_by_key) > self._max_keys:
            self._count_by_key.popitem(last=False)

    def worth_storing(self, keys: Sequence[OffloadKey], windowed: Set[bytes] = frozenset()) -> Sequence[OffloadKey]:
        """Those that were offered often enough, and of a chain none behind one that was not.

        Args:
            keys: in chain order, of several groups in any order.
            windowed: ends of the keys of groups that need no whole prefix: each key is judged by itself.
        """
        due: set[OffloadKey] = set()
        for suffix, chain in split_by_group(keys).items():
            due.update(filter(self._is_due, chain) if suffix in windowed else takewhile(self._is_due, chain))
        return [key for key in keys if key in due]

    def _is_due(self, key: OffloadKey) -> bool:
        return self._count_by_key.get(key, 0) >= self._threshold

    def __len__(self) -> int:
        return len(self._count_by_key)

    def __repr__(self) -> str:
        return f"OfferCounter({len(self)} of {self._max_keys} keys, threshold {self._threshold})"
