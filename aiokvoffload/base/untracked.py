"""Long sequences that the garbage collector does not go through.

It goes through a tuple once and then leaves it alone, but for 4,096 keys that is a tenth of a millisecond, and of a
burst of requests dozens are new at the same time: milliseconds in one go, for which the loop waits (I10). It does not
look into numpy's arrays, not even into those of objects.
"""

import sys
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar, cast, overload

import numpy as np
import numpy.typing as npt

T = TypeVar("T")

MAX_TRACKED = 512
"""Up to here a tuple is made, cut and gone through in little more time than it takes to ask for its length."""


class Untracked(Sequence[T]):
    """Items in an array of objects; pieces of it are tuples.

    Args:
        items: what it holds from now on.
    """

    __slots__ = ("_items",)

    def __init__(self, items: Sequence[T]) -> None:
        self._items: npt.NDArray[np.object_] = np.fromiter(items, dtype=np.object_, count=len(items))

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[T, ...]: ...

    def __getitem__(self, index: int | slice) -> T | tuple[T, ...]:
        if isinstance(index, slice):
            return tuple(self._items[index].tolist())
        return cast("T", self._items[index])

    def __iter__(self) -> Iterator[T]:
        return iter(self._items.tolist())

    def index(self, value: Any, start: int = 0, stop: int = sys.maxsize) -> int:
        """As of a tuple."""
        found: int = self._items.tolist().index(value, start, stop)
        return found

    def __len__(self) -> int:
        return len(self._items)

    def __repr__(self) -> str:
        return f"Untracked({len(self)} items)"


def untracked(items: tuple[T, ...]) -> Sequence[T]:
    """The same items where they may be kept: a short tuple as it is."""
    return Untracked(items) if len(items) > MAX_TRACKED else items
