"""From what a caller passes to checked pieces: which keys of which group lie in which GPU blocks.

Everything about a call that can be wrong is found here, before any byte moves.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from aiokvoffload.base import GPULoadStoreSpec, Ids, OffloadKey, get_offload_group_idx
from aiokvoffload.base.ids import SHORT
from aiokvoffload.base.untracked import untracked
from aiokvoffload.cache.chains import GROUP_SUFFIX, SUFFIX_BYTES, all_end_in, group_suffix
from aiokvoffload.cache.key_check import KeyCheck
from aiokvoffload.config import GroupConfig
from aiokvoffload.errors import ArgumentError

_WORD_BYTES = 8

Blocks = GPULoadStoreSpec | npt.ArrayLike
"""GPU blocks as a caller may pass them: a full spec, or plain ids when all keys are of one group."""


KeysByGroup = Sequence[Sequence[OffloadKey]]
"""One chain of keys for each KV-cache group."""


class KnownBlocks(GPULoadStoreSpec):
    """Some of a segment's blocks, which were checked when it was made."""

    __slots__ = ()

    def __init__(self, block_ids: Ids, group_sizes: Sequence[int], block_indices: Sequence[int]) -> None:
        self.block_ids, self.group_sizes, self.block_indices = block_ids, tuple(group_sizes), tuple(block_indices)


@dataclass(frozen=True, slots=True)
class Segment:
    """All chunks of one group in one call.

    Attributes:
        group_idx: the KV-cache group.
        num_groups: number of groups there are.
        blocks_per_chunk: blocks in one chunk of this group.
        keys: keys in chain order.
        block_ids: GPU blocks, logically consecutive.
        block_index: logical index of the first block.
    """

    group_idx: int
    num_groups: int
    blocks_per_chunk: int
    keys: Sequence[OffloadKey]
    block_ids: Ids
    block_index: int

    def blocks_of(self, first_chunk: int, num_chunks: int) -> GPULoadStoreSpec:
        """The GPU blocks of some consecutive chunks, in the form a worker takes."""
        skipped = self.block_index % self.blocks_per_chunk
        start = max(0, first_chunk * self.blocks_per_chunk - skipped)
        stop = (first_chunk + num_chunks) * self.blocks_per_chunk - skipped
        return self._spec(self.block_ids[start:stop], self.block_index + start)

    def blocks_of_some(self, chunks: Sequence[int]) -> GPULoadStoreSpec:
        """The GPU blocks of some whole chunks, not necessarily consecutive, for a store; there must be one."""
        size = self.blocks_per_chunk
        if size == 1:
            return self._spec(self.block_ids[list(chunks)], 0)
        return self._spec(np.concatenate([self.block_ids[chunk * size : (chunk + 1) * size] for chunk in chunks]), 0)

    def _spec(self, block_ids: Ids, block_index: int) -> GPULoadStoreSpec:
        sizes, indices = [0] * self.num_groups, [0] * self.num_groups
        sizes[self.group_idx], indices[self.group_idx] = len(block_ids), block_index
        return KnownBlocks(block_ids, sizes, indices)


def is_flat(keys: Any, num_groups: int) -> bool:
    """Whether `keys` is one chain, and not one for each group.

    Raises:
        ArgumentError: it is neither.
    """
    _require_several(keys, Sequence)
    if not keys or isinstance(keys[0], bytes):
        return True
    if isinstance(keys[0], str) or not isinstance(keys[0], Sequence):
        raise ArgumentError(f"keys must be offload keys, which are bytes, got {keys[0]!r} at index 0")
    if len(keys) != num_groups:
        raise ArgumentError(f"keys must be one chain, or one for each of {num_groups} groups, got {len(keys)}")
    return False


def chains(keys: Any, num_groups: int, *, checks_one: bool) -> list[tuple[OffloadKey, ...]]:
    """The one chain, or one for each group, as nobody can change them.

    Args:
        keys: as a caller gives them.
        num_groups: how many groups there are.
        checks_one: whether the keys of a single chain are checked here; those of several are.

    Raises:
        ArgumentError: they are neither, or a key is none of these groups.
    """
    copies = [copy_of(chain) for chain in ([keys] if is_flat(keys, num_groups) else keys)]
    if checks_one or len(copies) > 1:
        check = KeyCheck(num_groups)
        for chain in copies:
            check.require_keys(chain)
    return copies


def copy_of(keys: Iterable[OffloadKey]) -> tuple[OffloadKey, ...]:
    """Keys that cannot change under us.

    Raises:
        ArgumentError: they are not several keys, in order.
    """
    _require_several(keys, Iterable)
    return tuple(keys)


def _require_several(keys: Any, kind: type) -> None:
    if isinstance(keys, bytes | str | set | frozenset) or not isinstance(keys, kind):  # a set's order is nobody's
        raise ArgumentError(f"keys must be a sequence of offload keys, got a {type(keys).__name__}")


def plan_store(keys: Sequence[OffloadKey], blocks: Blocks, groups: Sequence[GroupConfig]) -> list[Segment]:
    """Segments of a store: whole chunks only (I4).

    Raises:
        ArgumentError: keys repeat, are malformed or not in group order, or the blocks do not cover whole chunks.
    """
    segments = _segments(keys, blocks, groups)
    for segment in segments:
        expected = len(segment.keys) * segment.blocks_per_chunk
        if segment.block_index % segment.blocks_per_chunk or len(segment.block_ids) != expected:
            raise ArgumentError(
                f"blocks of group {segment.group_idx}: a store covers whole chunks, so {len(segment.keys)} keys take "
                f"{expected} blocks from a multiple of blocks_per_chunk = {segment.blocks_per_chunk}, got "
                f"{len(segment.block_ids)} blocks from index {segment.block_index}"
            )
    return segments


def plan_load(keys: Sequence[OffloadKey], blocks: Blocks, groups: Sequence[GroupConfig]) -> list[Segment]:
    """Segments of a load: it may begin inside its first chunk and end inside its last.

    Raises:
        ArgumentError: keys repeat, are malformed or not in group order, or the blocks lie in another number of chunks.
    """
    segments = _segments(keys, blocks, groups)
    for segment in segments:
        per_chunk = segment.blocks_per_chunk
        touched = -(-(segment.block_index % per_chunk + len(segment.block_ids)) // per_chunk)
        if touched != len(segment.keys) or not len(segment.block_ids):
            raise ArgumentError(
                f"blocks of group {segment.group_idx}: {len(segment.block_ids)} blocks from index "
                f"{segment.block_index} lie in {touched} chunks of {per_chunk}, got {len(segment.keys)} keys"
            )
    return segments


def _segments(keys: Sequence[OffloadKey], blocks: Blocks, groups: Sequence[GroupConfig]) -> list[Segment]:
    keys = copy_of(keys)
    bounds = _group_bounds(keys, len(groups))
    spec = _own(blocks) if isinstance(blocks, GPULoadStoreSpec) else _single_group_spec(blocks, bounds)
    if len(spec.group_sizes) != len(groups):
        raise ArgumentError(f"blocks must have {len(groups)} groups, got {len(spec.group_sizes)}")
    segments, first_block = [], 0
    for group_idx, group in enumerate(groups):
        block_ids = spec.block_ids[first_block : first_block + spec.group_sizes[group_idx]]
        first_block += len(block_ids)
        group_keys = keys[bounds[group_idx] : bounds[group_idx + 1]]
        if len(group_keys) or len(block_ids):
            index = spec.block_indices[group_idx]
            segments.append(
                Segment(group_idx, len(groups), group.blocks_per_chunk, untracked(group_keys), block_ids, index)
            )
    return segments


def _own(spec: GPULoadStoreSpec) -> GPULoadStoreSpec:
    """The same, checked as it is now; later runs of the call must not see what the caller changes meanwhile."""
    return GPULoadStoreSpec(spec.block_ids, spec.group_sizes, spec.block_indices)


def _single_group_spec(block_ids: npt.ArrayLike, bounds: Sequence[int]) -> GPULoadStoreSpec:
    used = [group_idx for group_idx, (start, stop) in enumerate(pairwise(bounds)) if start < stop]
    if len(used) > 1:
        raise ArgumentError(f"blocks must be a GPULoadStoreSpec when keys are of several groups, here {used}")
    spec = GPULoadStoreSpec(block_ids)
    group_sizes = [0] * (len(bounds) - 1)
    group_sizes[used[0] if used else 0] = len(spec.block_ids)
    return KnownBlocks(spec.block_ids, group_sizes, [0] * len(group_sizes))


def _group_bounds(keys: Sequence[OffloadKey], num_groups: int) -> list[int]:
    """Where each group's keys begin, and one past the last; the keys must stand group after group."""
    try:
        return _checked_bounds(keys, num_groups)
    except TypeError as error:
        raise ArgumentError(f"keys must be one flat sequence of offload keys, which are bytes: {error}") from error


def _checked_bounds(keys: Sequence[OffloadKey], num_groups: int) -> list[int]:
    few = _few_suffixes(keys)
    if few and few == sorted(few) and few[-1] < group_suffix(num_groups):
        return [bisect_left(few, group_suffix(group_idx)) for group_idx in range(num_groups + 1)]
    if (laid := _end_to_end(keys)) is None:
        indices = np.fromiter(map(_group_idx, keys), dtype=np.int64, count=len(keys))
        _require_distinct(keys)
    else:
        if not _begin_distinct(*laid):
            _require_distinct(keys)
        if all_end_in(keys[0][GROUP_SUFFIX], *laid) and (only := get_offload_group_idx(keys[0])) < num_groups:
            return [0] * (only + 1) + [len(keys)] * (num_groups - only)
        indices = _indices_of(*laid)
    if len(indices) and int(indices.max()) >= num_groups:
        raise ArgumentError(
            f"keys[{int(indices.argmax())}] is of group {int(indices.max())}, the groups are 0 to {num_groups - 1}"
        )
    if np.any(indices[1:] < indices[:-1]):
        raise ArgumentError("keys must stand group after group, in group order")
    return [int(bound) for bound in np.searchsorted(indices, np.arange(num_groups + 1))]


def _few_suffixes(keys: Sequence[OffloadKey]) -> list[bytes]:
    """What says its group in each of a few distinct keys; nothing if they are many, repeat, or are none.

    Most calls bring few, and for those no array is made (see `base.ids`).
    """
    if not 0 < len(keys) <= SHORT or set(map(type, keys)) != {bytes} or len(set(keys)) < len(keys):
        return []
    return [key[GROUP_SUFFIX] for key in keys] if min(map(len, keys)) > SUFFIX_BYTES else []


def _require_distinct(keys: Sequence[OffloadKey]) -> None:
    if len(distinct := set(keys)) != len(keys):
        raise ArgumentError(f"keys must not repeat, got {len(keys)} keys of which {len(distinct)} are distinct")


def _end_to_end(keys: Sequence[OffloadKey]) -> tuple[bytes, int] | None:
    """Keys of one length, the rule, laid end to end, and that length: so they are looked at many times as fast.

    With few of numpy's calls, each of which may wait for the interpreter afterwards (see `base.ids`).
    """
    length = len(keys[0]) if keys and isinstance(keys[0], bytes) else 0
    if length < _WORD_BYTES + SUFFIX_BYTES or list(map(len, keys)).count(length) < len(keys):
        return None
    return b"".join(keys), length


def _begin_distinct(joined: bytes, length: int) -> bool:
    """Whether no two begin with the same word; sorting numbers takes a fifth of the time of a set of keys."""
    words = np.sort(np.ndarray(len(joined) // length, "u8", joined, strides=(length,)))
    return 1 not in (words[1:] == words[:-1]).tobytes()


def _indices_of(joined: bytes, length: int) -> Ids:
    """The group of each."""
    offset = length - SUFFIX_BYTES
    return np.ndarray(len(joined) // length, ">u4", joined, offset, (length,)).astype(np.int64)


def _group_idx(key: OffloadKey) -> int:
    if not isinstance(key, bytes) or len(key) < 5:
        raise ArgumentError(f"keys must be offload keys (hash and 4 bytes of group index), got {key!r}")
    return get_offload_group_idx(key)
