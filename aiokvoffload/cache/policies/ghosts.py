"""Keys that left a list, remembered by how long ago. Knows no chains: a ghost is not evicted, only forgotten."""

from collections import OrderedDict
from collections.abc import Collection, Iterable

from aiokvoffload.base import OffloadKey


class GhostList:
    """Keys in the order in which they left."""

    __slots__ = ("_keys",)

    def __init__(self) -> None:
        self._keys: OrderedDict[OffloadKey, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._keys)

    def __repr__(self) -> str:
        return f"GhostList({len(self)} keys)"

    def add(self, keys: Iterable[OffloadKey]) -> None:
        """Remember absent keys, the first of which left first."""
        self._keys.update(dict.fromkeys(keys))

    def present(self, keys: Collection[OffloadKey]) -> list[OffloadKey]:
        """Those of the keys that are here, in the order given."""
        return [] if self._keys.keys().isdisjoint(keys) else list(filter(self._keys.__contains__, keys))

    def remove(self, keys: Collection[OffloadKey]) -> list[OffloadKey]:
        """Forget those of the keys that are here; returns them, in the order given."""
        here = self.present(keys)
        for key in here:
            del self._keys[key]
        return here

    def forget_oldest(self, count: int) -> None:
        """Forget the `count` keys that left first; there are that many, or `count` is not positive."""
        for _ in range(count):
            self._keys.popitem(last=False)

    def clear(self) -> dict[OffloadKey, None]:
        """Forget all keys at once; returns the container that held them."""
        keys, self._keys = self._keys, OrderedDict()
        return keys
