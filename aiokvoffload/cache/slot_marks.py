"""A set of slots that may be nearly all there are. Knows nothing of what they are marked for."""

from collections.abc import Iterator, Sequence
from itertools import compress, islice


class SlotMarks:
    """Marks on some of a pool's slots: a byte for each slot, made with the first mark.

    A set of a million numbers is rebuilt in one go when some come while others leave, which takes 40 ms (I10).

    Args:
        num_slots: slots `0..num_slots - 1` exist.
    """

    __slots__ = ("_count", "_marks", "_num_slots")

    def __init__(self, num_slots: int) -> None:
        self._num_slots = num_slots
        self._marks = bytearray()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[int]:
        return compress(range(self._num_slots), self._marks)

    def __repr__(self) -> str:
        return f"SlotMarks({self._count} of {self._num_slots} slots)"

    def add(self, slots: Sequence[int]) -> None:
        """Mark slots that have no mark."""
        marks = self._marks = self._marks or bytearray(self._num_slots)
        for slot in slots:
            marks[slot] = 1
        self._count += len(slots)

    def are_all(self, slots: Sequence[int]) -> bool:
        """Whether each of these slots has a mark."""
        return not slots or (bool(self._marks) and all(map(self._marks.__getitem__, slots)))

    def remove(self, slots: Sequence[int]) -> None:
        """Take the marks from distinct slots that have one."""
        marks = self._marks
        for slot in slots:
            marks[slot] = 0
        self._count -= len(slots)

    def first(self, count: int) -> list[int]:
        """The first `count` slots that have one, or all of them."""
        start = max(0, self._marks.find(1))
        return list(islice(compress(range(start, self._num_slots), memoryview(self._marks)[start:]), count))
