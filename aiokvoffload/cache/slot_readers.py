"""Who reads which slots, by number. Knows no keys, and nothing of what becomes of a slot that nobody reads any more."""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import repeat

from aiokvoffload.errors import InternalError


class SlotReaders:
    """How many reads of each slot are under way; iterating gives the slots that are read."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._counts)

    def __iter__(self) -> Iterator[int]:
        return iter(self._counts)

    def __repr__(self) -> str:
        return f"SlotReaders({len(self._counts)} slots are read)"

    def isdisjoint(self, slots: Collection[int]) -> bool:
        """Whether none of these slots is read."""
        return not self._counts or self._counts.keys().isdisjoint(slots)

    def among(self, slots: Sequence[int]) -> set[int]:
        """Those of these slots that are read."""
        return set(filter(self._counts.__contains__, slots))

    def counts(self) -> dict[int, int]:
        """The reads of each slot that has any."""
        return dict(self._counts)

    def add(self, slots: Sequence[int]) -> None:
        """Each of these slots is read once more; one that is given twice, twice."""
        counts, once = self._counts, dict.fromkeys(slots, 1)
        if len(once) == len(slots) and counts.keys().isdisjoint(once.keys()):
            counts.update(once)
            return
        for slot in slots:
            counts[slot] = counts.get(slot, 0) + 1

    def remove(self, slots: Sequence[int]) -> Sequence[int]:
        """One read of each of these slots has ended.

        Returns:
            Those that nobody reads any more.

        Raises:
            InternalError: a slot is not being read; nothing has changed.
        """
        counts = self._counts
        ended = list(map(counts.pop, slots, repeat(0)))
        if ended.count(1) == len(ended):
            return slots
        if 0 not in ended:
            counts.update({slot: reads - 1 for slot, reads in zip(slots, ended, strict=True) if reads > 1})
            return [slot for slot, reads in zip(slots, ended, strict=True) if reads == 1]
        # Not the rule: as it was, and one by one.
        counts.update(each for each in zip(slots, ended, strict=True) if each[1])
        return self._remove_repeated(slots)

    def _remove_repeated(self, slots: Sequence[int]) -> list[int]:
        counts = self._counts
        if foreign := [slot for slot, reads in Counter(slots).items() if counts.get(slot, 0) < reads]:
            raise InternalError(f"slot {min(foreign)} is unpinned but not pinned: {self!r}")
        left = []
        for slot in slots:
            counts[slot] -= 1
            if not counts[slot]:
                del counts[slot]
                left.append(slot)
        return left
