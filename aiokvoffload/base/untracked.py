"""Long sequences that the garbage collector does not go through.

It goes through a tuple of keys once and then leaves it alone, but for 4,096 keys that is a tenth of a millisecond, and
of a burst of requests dozens are new at the same time: milliseconds in one go, for which the loop waits (I10). numpy's
arrays it does not even know of, those of objects included.
"""

from collections.abc import Iterator, Sequence
from typing import TypeVar, cast, overload

import numpy as np
import numpy.typing as npt

T = TypeVar("T")

MAX_TRACKED = 512
"""Up to here a tuple is made, cut and gone through in little more time than it takes to ask for its length."""


def object_array(items: Sequence[object]) -> npt.NDArray[np.object_]:
    """The very items, in order, in an array: untracked itself, as no object of a class of ours can be."""
    return np.fromiter(items, dtype=np.object_, count=len(items))


class Untracked(Sequence[T]):
    """Items in an array of objects, which looks like a tuple of them; pieces of it are tuples.

    Args:
        items: what it holds from now on.
    """

    __slots__ = ("_items",)

    def __init__(self, items: Sequence[T]) -> None:
        self._items = object_array(items)

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

    def __len__(self) -> int:
        return len(self._items)

    def __repr__(self) -> str:
        return f"Untracked({len(self)} items)"


def untracked(items: tuple[T, ...]) -> Sequence[T]:
    """The same items where they may be kept: a short tuple as it is."""
    return Untracked(items) if len(items) > MAX_TRACKED else items
