"""Keys by their last use, the building block of the recency policies. Knows neither rooms nor frequencies."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain, islice

from aiokvoffload.base import OffloadKey

_MOST_STAGED = 4096


class RecencyList:
    """Keys ordered by last use; those that are pinned are passed over when the oldest are asked for.

    Three plain dictionaries rather than one `OrderedDict`, which takes about twice as long for a key that comes and
    goes. A dictionary is slow at its front, where deletions leave holes to be skipped at every look, so the oldest keys
    are moved to `_oldest` a batch at a time, the very oldest last. Pinned keys met there are set aside until they are
    unpinned, so that passing over them costs once, not at every eviction.

    Args:
        pinned: keys that may not be evicted now; the owner's set, read here.
    """

    __slots__ = ("_aside", "_newer", "_oldest", "_pinned")

    def __init__(self, pinned: set[OffloadKey]) -> None:
        self._pinned = pinned
        self._newer: dict[OffloadKey, None] = {}
        self._oldest: dict[OffloadKey, None] = {}
        self._aside: dict[OffloadKey, None] = {}

    def __len__(self) -> int:
        return len(self._newer) + len(self._oldest) + len(self._aside)

    def __iter__(self) -> Iterator[OffloadKey]:
        return chain(self._aside, reversed(self._oldest), self._newer)

    def __repr__(self) -> str:
        return f"RecencyList({len(self)} keys, {len(self._aside)} set aside)"

    def add(self, keys: Sequence[OffloadKey]) -> None:
        """Add absent keys as most recent, the first of them last."""
        newer = self._newer
        for key in reversed(keys):
            newer[key] = None

    def touch(self, keys: Sequence[OffloadKey]) -> None:
        """Make those of the keys that are here the most recent, the first of them last."""
        here = self.present(keys)
        newer, oldest = self._newer, self._oldest
        for key in reversed(here):
            if key in newer:
                del newer[key]
            elif key in oldest:
                del oldest[key]
            else:
                del self._aside[key]
            newer[key] = None

    def present(self, keys: Collection[OffloadKey]) -> list[OffloadKey]:
        """Those of the keys that are here, in the order given."""
        newer, oldest, aside = self._newer, self._oldest, self._aside
        if newer.keys().isdisjoint(keys) and oldest.keys().isdisjoint(keys) and aside.keys().isdisjoint(keys):
            return []  # the usual answer for the new part of a chain, found without a loop in Python
        return [key for key in keys if key in newer or key in oldest or key in aside]

    def remove(self, keys: Collection[OffloadKey]) -> list[OffloadKey]:
        """Remove those of the keys that are here; returns them, in the order given."""
        removed = self.present(keys)
        newer, oldest = self._newer, self._oldest
        for key in removed:
            if key in newer:
                del newer[key]
            elif key in oldest:
                del oldest[key]
            else:
                del self._aside[key]
        return removed

    def evict(self, count: int, protected: Collection[OffloadKey]) -> list[OffloadKey]:
        """Remove the `count` oldest keys that are neither pinned nor protected, fewer if there are fewer."""
        victims: list[OffloadKey] = []
        spared: list[OffloadKey] = []
        while len(victims) < count and (self._oldest or self._stage(count)):
            oldest = list(islice(reversed(self._oldest), count - len(victims)))
            for _ in oldest:
                self._oldest.popitem()
            if self._pinned.isdisjoint(oldest) and not any(map(protected.__contains__, oldest)):
                victims += oldest
            else:
                self._sort_out(oldest, protected, victims, spared)
        self._oldest.update(dict.fromkeys(reversed(spared)))
        return victims

    def unpin(self, keys: Iterable[OffloadKey]) -> None:
        """Put those of the keys that were set aside back where the oldest are; the last of them goes first."""
        if self._aside:
            back = [key for key in keys if key in self._aside]
            for key in back:
                del self._aside[key]
            self._oldest.update(dict.fromkeys(back))

    def clear(self) -> list[dict[OffloadKey, None]]:
        """Forget all keys at once; returns the containers that held them."""
        containers = [self._newer, self._oldest, self._aside]
        self._newer, self._oldest, self._aside = {}, {}, {}
        return containers

    def _sort_out(
        self,
        keys: Iterable[OffloadKey],
        protected: Collection[OffloadKey],
        victims: list[OffloadKey],
        spared: list[OffloadKey],
    ) -> None:
        for key in keys:
            if key in self._pinned:
                self._aside[key] = None
            elif key in protected:
                spared.append(key)
            else:
                victims.append(key)

    def _stage(self, count: int) -> bool:
        """Move the older keys of `_newer` to the empty `_oldest`; False if there are none."""
        # A part of all, so that skipping the holes is paid by many evictions; a bounded one, so that no call is long.
        batch_size = max(count, min(len(self._newer) // 32, _MOST_STAGED))
        batch = list(islice(self._newer, batch_size))
        for key in batch:
            del self._newer[key]
        self._oldest = dict.fromkeys(reversed(batch))
        return bool(batch)


def can_evict(
    count: int, lists: Sequence[RecencyList], pinned: set[OffloadKey], protected: Collection[OffloadKey]
) -> int:
    """How many of `count` wanted victims there are.

    Args:
        count: how many are wanted.
        lists: all resident keys.
        pinned: those of them that are pinned.
        protected: any keys.
    """
    unpinned = sum(map(len, lists)) - len(pinned)
    if unpinned - len(protected) >= count:  # The usual case: no need to look which protected keys are resident.
        return count
    resident = [key for keys in lists for key in keys.present(set(protected))]
    return min(count, unpinned - sum(key not in pinned for key in resident))
