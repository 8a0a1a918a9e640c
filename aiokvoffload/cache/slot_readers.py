"""Who reads which slots, by number. Knows no keys, and nothing of what becomes of a slot that nobody reads any more."""

from collections import Counter
from collections.abc import Sequence
from itertools import repeat

from aiokvoffload.errors import InternalError


class SlotReaders(dict[int, int]):
    """How many reads are under way of each slot that has any; changed by `add` and `remove` only.

    A dictionary itself, since it is asked in every call, mostly to say that there is none.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return f"SlotReaders({len(self)} slots are read)"

    def add(self, slots: Sequence[int]) -> None:
        """Each of these slots is read once more; one that is given twice, twice."""
        once = {}
        for slot in slots:  # `dict.fromkeys` takes longer for few of them, and no shorter for many
            once[slot] = 1
        if len(once) == len(slots) and self.keys().isdisjoint(once.keys()):
            self.update(once)
            return
        for slot in slots:
            self[slot] = self.get(slot, 0) + 1

    def remove(self, slots: Sequence[int]) -> Sequence[int]:
        """One read of each of these slots has ended.

        Returns:
            Those that nobody reads any more.

        Raises:
            InternalError: a slot is not being read; nothing has changed.
        """
        ended = list(map(self.pop, slots, repeat(0)))
        if ended.count(1) == len(ended):
            return slots
        if 0 not in ended:
            self.update({slot: reads - 1 for slot, reads in zip(slots, ended, strict=True) if reads > 1})
            return [slot for slot, reads in zip(slots, ended, strict=True) if reads == 1]
        # Not the rule: as it was, and one by one.
        self.update(each for each in zip(slots, ended, strict=True) if each[1])
        return self._remove_repeated(slots)

    def _remove_repeated(self, slots: Sequence[int]) -> list[int]:
        if foreign := [slot for slot, reads in Counter(slots).items() if self.get(slot, 0) < reads]:
            raise InternalError(f"slot {min(foreign)} is unpinned but not pinned: {self!r}")
        left = []
        for slot in slots:
            self[slot] -= 1
            if not self[slot]:
                del self[slot]
                left.append(slot)
        return left
