"""Whether what a tier is given fits together: keys of known groups, each with its buffers. Knows no tier's insides."""

from collections.abc import Sequence
from itertools import chain
from operator import attrgetter

from aiokvoffload.base import ChunkViews, OffloadKey
from aiokvoffload.cache.chains import GROUP_SUFFIX, group_suffix
from aiokvoffload.cache.key_check import KeyCheck
from aiokvoffload.errors import ArgumentError, ConfigError

_WHAT_COUNTS = attrgetter("nbytes", "c_contiguous", "readonly")


class TierArguments:
    """Checks the arguments of `SecondaryTier.store` and `load`.

    Args:
        chunk_bytes: of each group, the payload of one chunk on one worker, in bytes.
        num_workers: buffers per chunk.

    Raises:
        ConfigError: there is no group, no worker, or a chunk without bytes.
    """

    __slots__ = ("_check", "_fit_to_load", "_fit_to_store", "_size_by_suffix", "num_workers")

    def __init__(self, chunk_bytes: Sequence[int], num_workers: int) -> None:
        if not chunk_bytes or min(chunk_bytes) < 1:
            raise ConfigError(f"chunk_bytes must give every group at least 1 byte, got {tuple(chunk_bytes)}")
        if num_workers < 1:
            raise ConfigError(f"num_workers must be at least 1, got {num_workers}")
        self.num_workers = num_workers
        self._check = KeyCheck(len(chunk_bytes))
        sizes = set(chunk_bytes) if len(set(chunk_bytes)) == 1 else set[int]()
        self._fit_to_load = {(size, True, False) for size in sizes}
        self._fit_to_store = self._fit_to_load | {(size, True, True) for size in sizes}
        self._size_by_suffix = {group_suffix(group_idx): size for group_idx, size in enumerate(chunk_bytes)}

    def require(self, keys: Sequence[OffloadKey], views: Sequence[ChunkViews], *, writable: bool) -> None:
        """Check one call.

        Raises:
            ArgumentError: keys are none or not distinct, or their buffers are not as many, as large, or as writable as
                they must be; the message names the first that is wrong.
        """
        self.require_keys(keys)
        self._check.require_distinct(keys)
        if len(views) != len(keys):
            raise ArgumentError(f"views must have one entry for each of {len(keys)} keys, got {len(views)}")
        if self._are_usual(views, writable=writable):
            return
        size_of, num_workers = self._size_by_suffix, self.num_workers
        for index, (key, buffers) in enumerate(zip(keys, views, strict=True)):
            size_bytes = size_of[key[GROUP_SUFFIX]]
            for buffer in buffers:
                if buffer.nbytes != size_bytes or (writable and buffer.readonly) or not buffer.c_contiguous:
                    raise _unfit_buffer(index, buffer, size_bytes)
            if len(buffers) != num_workers:
                raise ArgumentError(
                    f"views[{index}] must have a buffer for each of {num_workers} workers: {len(buffers)}"
                )

    def _are_usual(self, views: Sequence[ChunkViews], *, writable: bool) -> bool:
        """Whether all is well, and seen without looking at one buffer after the other; chunks must be of one size."""
        fit = self._fit_to_load if writable else self._fit_to_store
        return set(map(_WHAT_COUNTS, chain.from_iterable(views))) <= fit and set(map(len, views)) == {self.num_workers}

    def require_keys(self, keys: Sequence[OffloadKey]) -> None:
        """Check keys alone.

        Raises:
            ArgumentError: one is no key of a known group.
        """
        self._check.require_keys(keys)


def _unfit_buffer(index: int, buffer: memoryview, size_bytes: int) -> ArgumentError:
    found = f"{buffer.nbytes}, {'contiguous' if buffer.c_contiguous else 'scattered'}"
    found += ", read-only" if buffer.readonly else ""
    return ArgumentError(f"views[{index}] must be {size_bytes} contiguous bytes, writable for a load, got {found}")
