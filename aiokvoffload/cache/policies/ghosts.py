"""Keys that are gone, remembered by fingerprint in arrays. Knows neither chains nor what is resident.

A fingerprint is 32 bits of a checksum, which unlike Python's hash is the same in every process. Two keys can share one:
of a million remembered, a new key is taken for one of them once in 4,000 times, and an opinion about it is wrong then.
"""

from collections.abc import Iterable, Sequence
from itertools import repeat
from zlib import crc32

import numpy as np
import numpy.typing as npt

from aiokvoffload.base import OffloadKey

_FEW = 64
"""Up to so many, a line of Python for each takes no longer than numpy needs to begin."""


def fingerprints(keys: Iterable[OffloadKey], seed: int = 0) -> list[int]:
    """A number below 2**32 for each key."""
    return list(map(crc32, keys, repeat(seed)))


def zeros(count: int, dtype: type[np.unsignedinteger]) -> "memoryview[int]":
    """Numbers, all 0, in memory that the system clears when it is first used: making a million takes no time (I10)."""
    return memoryview(np.zeros(count, dtype))  # type: ignore[arg-type]


class GhostList:
    """Keys in the order in which they left, up to a limit; beyond it, the one that left first is forgotten.

    A ring of fingerprints, in which what was recalled leaves holes, with an index of chained buckets over it: at most
    20 bytes for each key that it has room for.

    Args:
        limit: most keys.
    """

    __slots__ = ("_buckets", "_count", "_first", "_limit", "_mask", "_next", "_next_in_bucket", "_ring", "_size")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._size = limit + limit // 4 + 1  # room for some holes
        self._mask = (1 << max(1, limit).bit_length() - 1) - 1
        self.clear()

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        return f"GhostList({len(self)} of {self._limit} keys)"

    def add(self, tags: Iterable[int]) -> None:
        """Remember the fingerprints of absent keys, the first of which left first."""
        for tag in tags:
            if self._next - self._first == self._size:
                self._forget_first()
            cell, bucket = self._next % self._size, tag & self._mask
            self._ring[cell] = tag
            self._next_in_bucket[cell] = self._buckets[bucket]
            self._buckets[bucket] = cell + 1
            self._next += 1
            self._count += 1
        self.forget_oldest(self._count - self._limit)

    def count_present(self, tags: Iterable[int]) -> int:
        """How many of the fingerprints are here."""
        return sum(map(bool, map(self._find, tags))) if self._count else 0

    def remove(self, tags: Sequence[int]) -> list[bool]:
        """Forget those of the fingerprints that are here; says for each whether it was."""
        return [self._remove(tag) for tag in tags] if self._count else [False] * len(tags)

    def forget_oldest(self, count: int) -> None:
        """Forget the `count` keys that left first; there are that many, or `count` is not positive."""
        kept = self._count - max(0, count)
        while self._count > kept:
            self._forget_first()

    def clear(self) -> None:
        """Forget all keys at once."""
        # A cell is named by its number and 1, so that 0 is none.
        self._buckets = zeros(self._mask + 1, np.uint32)
        self._next_in_bucket = zeros(self._size, np.uint32)
        self._ring = zeros(self._size, np.uint32)
        self._first = self._next = self._count = 0

    def _find(self, tag: int) -> int:
        cell = self._buckets[tag & self._mask]
        while cell and self._ring[cell - 1] != tag:
            cell = self._next_in_bucket[cell - 1]
        return cell

    def _remove(self, tag: int) -> bool:
        cell = self._find(tag)
        if cell:
            self._unlink(tag, cell)
        return cell > 0

    def _forget_first(self) -> None:
        cell = self._first % self._size + 1
        tag = self._ring[cell - 1]
        self._first += 1
        # A cell that its bucket does not lead to is a hole.
        if self._leads_to(tag, cell):
            self._unlink(tag, cell)

    def _leads_to(self, tag: int, cell: int) -> bool:
        found = self._buckets[tag & self._mask]
        while found and found != cell:
            found = self._next_in_bucket[found - 1]
        return found == cell

    def _unlink(self, tag: int, cell: int) -> None:
        before, found = 0, self._buckets[tag & self._mask]
        while found != cell:
            before, found = found, self._next_in_bucket[found - 1]
        if before:
            self._next_in_bucket[before - 1] = self._next_in_bucket[cell - 1]
        else:
            self._buckets[tag & self._mask] = self._next_in_bucket[cell - 1]
        self._count -= 1


class CountTable:
    """A small count for each of many fingerprints; a new one takes the place of whichever was where it belongs.

    So it never fills up, and a count is the sooner lost the more have come since: 5 bytes for each place.

    Args:
        size: number of places.
    """

    __slots__ = ("_count_at", "_counts", "_size", "_tag_at", "_tags")

    def __init__(self, size: int) -> None:
        self._size = size
        self.clear()

    def find(self, tags: Sequence[int]) -> bytes:
        """The count of each fingerprint, 0 for those that are not here."""
        if len(tags) > _FEW:
            return self._find_many(np.array(tags, np.int64))
        stored, counts, size = self._tag_at, self._count_at, self._size
        return bytes([counts[place] if stored[place := tag * size >> 32] == tag else 0 for tag in tags])

    def _find_many(self, tags: npt.NDArray[np.int64]) -> bytes:
        places = tags * self._size >> 32
        found: npt.NDArray[np.uint8] = self._counts[places] * (self._tags[places] == tags)
        return found.tobytes()

    def put(self, tags: Sequence[int], counts: Sequence[int]) -> None:
        """Set the count of each fingerprint, from 1 to 255; of two that have one place, the last stays."""
        if len(tags) > _FEW:
            places = np.array(tags, np.int64) * self._size >> 32
            self._tags[places] = tags
            self._counts[places] = counts
            return
        stored, all_counts, size = self._tag_at, self._count_at, self._size
        for tag, count in zip(tags, counts, strict=True):
            place = tag * size >> 32
            stored[place] = tag
            all_counts[place] = count

    def clear(self) -> None:
        """Forget all."""
        self._tags = np.zeros(self._size, np.uint32)
        self._counts = np.zeros(self._size, np.uint8)
        # The same memory, faster one by one.
        self._tag_at, self._count_at = memoryview(self._tags), memoryview(self._counts)  # type: ignore[arg-type]
