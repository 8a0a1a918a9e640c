"""Who reads which slots, by number. Knows no keys, and nothing of what becomes of a slot that nobody reads any more."""

from collections.abc import Sequence
from itertools import repeat

from aiokvoffload.errors import InternalError

_MANY = 64
"""Of more slots than these it pays to take all counts out at once."""


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
        if len(slots) > _MANY and (gone := self._remove_distinct(slots)) is not None:
            return gone
        counts, left = self.counts, []
        for done, slot in enumerate(slots):
            reads = counts.get(slot, 0)
            if reads == 1:
                del counts[slot]
                left.append(slot)
            elif reads:
                counts[slot] = reads - 1
            else:
                self.add(slots[:done])
                raise InternalError(f"slot {slot} is unpinned but not pinned: {self!r}")
        return left

    def _remove_distinct(self, slots: Sequence[int]) -> Sequence[int] | None:
        """The same for many in half the time; `None`, and nothing has changed, unless each is read and named once."""
        counts = self.counts
        ended = list(map(counts.pop, slots, repeat(0)))
        if ended.count(1) == len(ended):
            return slots
        if 0 in ended:
            counts.update(each for each in zip(slots, ended, strict=True) if each[1])
            return None
        counts.update({slot: reads - 1 for slot, reads in zip(slots, ended, strict=True) if reads > 1})
        return [slot for slot, reads in zip(slots, ended, strict=True) if reads == 1]
