"""Which slots are free, as runs of adjacent ones. Knows nothing of keys or of what the slots are for."""

from collections.abc import Iterable, Iterator

Run = tuple[int, int]
"""First slot of a run, and the one after its last."""


class FreeRuns:
    """The free slots of a pool, so that a chain can get adjacent ones and be copied in one piece.

    Runs are found by size class (the bit length of their size) and joined with their neighbours when slots come back:
    taking and giving cost time by the number of runs that move, not by how many there are.

    Args:
        num_slots: slots `0..num_slots - 1` exist.
        taken: those that are not free.

    Attributes:
        count: how many are free; not to be changed from outside.
    """

    __slots__ = ("_filled", "_size_classes", "_start_by_stop", "_stop_by_start", "count")

    def __init__(self, num_slots: int, taken: Iterable[int] = ()) -> None:
        self.count = 0
        self._stop_by_start: dict[int, int] = {}
        self._start_by_stop: dict[int, int] = {}
        # Class i holds the starts of runs of 2**(i-1) up to 2**i - 1 slots; dicts, since popitem() is O(1) and ordered.
        self._size_classes: list[dict[int, None]] = [{} for _ in range(num_slots.bit_length() + 1)]
        self._filled = 0  # bit i is set while class i has runs
        previous = -1
        for slot in (*sorted(taken), num_slots):
            self._add(previous + 1, slot)
            previous = slot

    def __iter__(self) -> Iterator[int]:
        for start, stop in self._stop_by_start.items():
            yield from range(start, stop)

    def __repr__(self) -> str:
        return f"FreeRuns({self.count} slots in {len(self._stop_by_start)} runs)"

    def extend(self, start: int, stop: int) -> None:
        """There are more slots from now on, all of them free; `start` is the number of slots so far."""
        self._size_classes += [{} for _ in range(stop.bit_length() + 1 - len(self._size_classes))]
        last = self._start_by_stop.get(start)
        if last is not None:
            self._remove(last, start)
        self._add(start if last is None else last, stop)

    def take(self, count: int) -> list[int]:
        """Take `count` slots, no more than are free: one run if any is long enough, else as few runs as is cheap."""
        slots: list[int] = []
        while (missing := count - len(slots)) > 0:
            start, stop = self._pop_run(missing)
            used_stop = min(stop, start + missing)
            slots.extend(range(start, used_stop))
            self._add(used_stop, stop)
        return slots

    def remove(self, slots: Iterable[int]) -> None:
        """Take these slots, which stand in increasing order and are free, as long as each run is free as one."""
        for start, stop in runs_of(slots):
            first = start if start in self._stop_by_start else self._start_of(start)
            last = self._stop_by_start[first]
            self._remove(first, last)
            self._add(first, start)
            self._add(stop, last)

    def _start_of(self, slot: int) -> int:
        """The start of the free run that a slot is in, found by going through all, the one added last first."""
        return next(start for start, stop in reversed(self._stop_by_start.items()) if start <= slot < stop)

    def take_all(self) -> list[int]:
        """Take every free slot, in no particular order."""
        slots = list(self)
        self._stop_by_start.clear()
        self._start_by_stop.clear()
        for size_class in self._size_classes:
            size_class.clear()
        self._filled = self.count = 0
        return slots

    def give(self, slots: Iterable[int]) -> None:
        """Give slots back; none of them may be free."""
        for start, stop in runs_of(sorted(slots)):
            before = self._start_by_stop.get(start)
            after = self._stop_by_start.get(stop)
            if before is not None:
                self._remove(before, start)
            if after is not None:
                self._remove(stop, after)
            self._add(start if before is None else before, stop if after is None else after)

    def _pop_run(self, wanted: int) -> Run:
        fitting = (wanted - 1).bit_length() + 1  # the lowest class whose every run is long enough
        longer = self._filled >> fitting
        index = fitting + (longer & -longer).bit_length() - 1 if longer else self._filled.bit_length() - 1
        start = next(reversed(self._size_classes[index]))
        stop = self._stop_by_start[start]
        self._remove(start, stop)
        return start, stop

    def _add(self, start: int, stop: int) -> None:
        if start < stop:
            index = (stop - start).bit_length()
            self._stop_by_start[start] = stop
            self._start_by_stop[stop] = start
            self._size_classes[index][start] = None
            self._filled |= 1 << index
            self.count += stop - start

    def _remove(self, start: int, stop: int) -> None:
        index = (stop - start).bit_length()
        del self._stop_by_start[start]
        del self._start_by_stop[stop]
        del self._size_classes[index][start]
        if not self._size_classes[index]:
            self._filled ^= 1 << index
        self.count -= stop - start


def runs_of(slots: Iterable[int]) -> Iterator[Run]:
    """The runs of adjacent numbers in `slots`, which stand in increasing order."""
    start = stop = -1
    for slot in slots:
        if slot != stop:
            if start >= 0:
                yield start, stop
            start = slot
        stop = slot + 1
    if start >= 0:
        yield start, stop
