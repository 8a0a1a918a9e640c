"""Keys by their last use, the building block of the recency policies. Knows neither rooms nor frequencies."""

from collections.abc import Collection, Iterable, Iterator, Sequence, Set
from itertools import chain, islice

from aiokvoffload.base import OffloadKey

_MOST_STAGED = 4096


class RecencyList:
    """Keys ordered by last use; those that are pinned are passed over when the oldest are asked for.

    A plain dictionary rather than an `OrderedDict`, which takes about twice as long for a key that comes and goes. It
    is slow at its front only, where deletions leave holes to be skipped at every look. So the front is read a batch at
    a time, into `_staged`, the very oldest last; keys that have left their place since then are in `_moved`. The two
    are but a reading of the rest, and can be started anew at any time.

    Pinned keys met at the front are set aside until they are unpinned, so that passing over them costs once, not at
    every eviction. They count as older than all others. Protected keys are set aside with them, until somebody asks who
    protects others: a request that stores a long chain run by run would else pass over all of its own keys in every
    run.

    Args:
        pinned: keys that may not be evicted now; the owner's set, read here.
    """

    __slots__ = ("_aside", "_moved", "_order", "_pinned", "_spared_for", "_staged")

    def __init__(self, pinned: set[OffloadKey]) -> None:
        self._pinned = pinned
        self._order: dict[OffloadKey, None] = {}
        self._aside: dict[OffloadKey, None] = {}
        self._staged: list[OffloadKey] = []
        self._moved: set[OffloadKey] = set()
        # Who protects keys that are set aside, if any are; all that are set aside are then pinned or among these.
        self._spared_for: Collection[OffloadKey] | None = None

    def __len__(self) -> int:
        return len(self._order) + len(self._aside)

    def __iter__(self) -> Iterator[OffloadKey]:
        return chain(self._aside, self._order)

    def __repr__(self) -> str:
        return f"RecencyList({len(self)} keys, {len(self._aside)} set aside)"

    def add(self, keys: Sequence[OffloadKey]) -> None:
        """Add absent keys as most recent, the first of them last."""
        order = self._order
        for key in reversed(keys):
            order[key] = None

    def touch(self, keys: Sequence[OffloadKey]) -> None:
        """Make those of the keys that are here the most recent, the first of them last."""
        order, aside = self._order, self._aside
        if order.keys().isdisjoint(keys) and aside.keys().isdisjoint(keys):
            return  # as is usual for the new part of a chain
        for key in reversed(keys):
            if key in order:
                del order[key]
            elif key in aside:
                del aside[key]
            else:
                continue
            order[key] = None
        self._note_moved(keys)

    def present(self, keys: Collection[OffloadKey]) -> list[OffloadKey]:
        """Those of the keys that are here, in the order given."""
        order, aside = self._order, self._aside
        if aside:
            return [key for key in keys if key in order or key in aside]
        return [] if order.keys().isdisjoint(keys) else [key for key in keys if key in order]

    def remove(self, keys: Collection[OffloadKey]) -> list[OffloadKey]:
        """Remove those of the keys that are here; returns them, in the order given."""
        if here := self.present(keys):
            self._take_out(here)
            self._note_moved(here)
        return here

    def evict(self, count: int, protected: Collection[OffloadKey]) -> list[OffloadKey]:
        """Remove the `count` oldest keys that are neither pinned nor protected, fewer if there are fewer.

        Where one set of protected keys is given again, it may have grown since, but not shrunk.
        """
        victims = self._read(count, protected)
        self._take_out(victims)
        return victims

    def count_victims(self, count: int, protected: Collection[OffloadKey]) -> int:
        """How many keys `evict` would remove; those passed over are set aside as there."""
        victims = self._read(count, protected)
        self._staged += reversed(victims)
        return len(victims)

    def unpin(self, keys: Collection[OffloadKey]) -> None:
        """Let those of the keys that were set aside leave again, before all others."""
        if not self._aside or self._aside.keys().isdisjoint(keys):
            return
        if self._spared_for is None or not _as_set(self._spared_for).issuperset(keys):
            self._stage_anew()

    def clear(self) -> list[dict[OffloadKey, None]]:
        """Forget all keys at once; returns the containers that held them."""
        containers = [self._order, self._aside]
        self._order, self._aside = {}, {}
        self._stage_anew()
        return containers

    def _take_out(self, keys: Iterable[OffloadKey]) -> None:
        order, aside = self._order, self._aside
        if not aside:
            for key in keys:
                del order[key]
            return
        for key in keys:
            del (aside if key in aside else order)[key]

    def _note_moved(self, keys: Iterable[OffloadKey]) -> None:
        self._moved.update(keys)
        if len(self._moved) > _MOST_STAGED:
            self._stage_anew()

    def _read(self, count: int, protected: Collection[OffloadKey]) -> list[OffloadKey]:
        """The `count` oldest keys that may go, fewer if there are fewer; taken from the reading, not from the order."""
        victims: list[OffloadKey] = []
        if count <= 0:
            return victims
        if self._spared_for is not None and self._spared_for is not protected:
            self._stage_anew()
        kept = _as_set(protected)
        while (wanted := count - len(victims)) > 0 and (self._staged or self._stage(wanted, victims)):
            oldest = self._staged[: -wanted - 1 : -1]
            del self._staged[-wanted:]
            if self._moved and not self._moved.isdisjoint(oldest):
                oldest = [key for key in oldest if key not in self._moved]
            if not kept.isdisjoint(oldest):
                self._spared_for = protected
                oldest = self._sort_out(oldest, kept)
            elif not self._pinned.isdisjoint(oldest):
                oldest = self._sort_out(oldest, kept)
            victims += oldest
        return victims

    def _sort_out(self, keys: Iterable[OffloadKey], kept: Set[OffloadKey]) -> list[OffloadKey]:
        """Those of the keys that may go; those that are pinned or among `kept` are set aside."""
        victims = []
        for key in keys:
            if key in kept or key in self._pinned:
                self._order.pop(key, None)
                self._aside[key] = None
            else:
                victims.append(key)
        return victims

    def _stage(self, count: int, victims: Collection[OffloadKey]) -> bool:
        """Read the oldest keys behind those found just now, with `_staged` used up; False if there are none."""
        # A part of all, so that skipping the holes is paid by many evictions; a bounded one, so that no call is long.
        batch_size = max(count, min(len(self._order) // 8, _MOST_STAGED))
        first = sum(map(self._order.__contains__, victims))
        self._staged = list(islice(self._order, first, first + batch_size))
        self._staged.reverse()
        self._moved.clear()
        return bool(self._staged)

    def _stage_anew(self) -> None:
        """Forget the reading of the front, but for what is to leave before all others."""
        self._staged = [key for key in reversed(self._aside) if key not in self._pinned]
        self._moved.clear()
        self._spared_for = None


def _as_set(keys: Collection[OffloadKey]) -> set[OffloadKey] | frozenset[OffloadKey]:
    """The keys as what knows in one step whether one is among them; that is what they are where it matters."""
    return keys if isinstance(keys, set) else frozenset(keys)
