"""Who reads which slots, by number. Knows no keys, and nothing of what becomes of a slot that nobody reads any more."""

from collections import Counter
from collections.abc import Sequence
from itertools import repeat

from aiokvoffload.errors import InternalError


class SlotReaders:
    """How many reads of each slot are under way.

    Attributes:
        counts: the reads of each slot that has any; to be read only.
    """

    __slots__ = ("counts",)

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}

    def __repr__(self) -> str:
        return f"SlotReaders({len(self.counts)} slots are read)"

    def add(self, slots: Sequence[int]) -> None:
        """Each of these slots is read once more; one that is given twice, twice."""
        counts = self.counts
        for slot in slots:
            counts[slot] = counts.get(slot, 0) + 1

    def remove(self, slots: Sequence[int]) -> Sequence[int]:
        """One read of each of these slots has ended.

        Returns:
            Those that nobody reads any more.

        Raises:
            InternalError: a slot is not being read; nothing has changed.
        """
        counts = self.counts
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
        counts = self.counts
        if foreign := [slot for slot, reads in Counter(slots).items() if counts.get(slot, 0) < reads]:
            raise InternalError(f"slot {min(foreign)} is unpinned but not pinned: {self!r}")
        left = []
        for slot in slots:
            counts[slot] -= 1
            if not counts[slot]:
                del counts[slot]
                left.append(slot)
        return left
