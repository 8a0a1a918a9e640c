"""Where bytes lie: blocks in GPU memory, slots in a tier, and the tensors that hold the blocks."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aiokvoffload.base.ids import as_ids
from aiokvoffload.errors import ArgumentError

if TYPE_CHECKING:
    import numpy.typing as npt
    import torch


class LoadStoreSpec:
    """Where the chunks of one transfer lie in one medium, in key order. Each medium has its own subclass."""

    __slots__ = ()


class GPULoadStoreSpec(LoadStoreSpec):
    """Blocks in GPU memory, group after group, each group's blocks logically consecutive.

    Attributes:
        block_ids: int64 array of all blocks' ids, groups in order.
        group_sizes: number of blocks of each group; they sum to `len(block_ids)`.
        block_indices: for each group, the logical index of its first block in the sequence; its remainder by
            `blocks_per_chunk` says how many leading blocks of the first chunk are left out.

    Raises:
        ArgumentError: ids are not whole numbers, negative or not one-dimensional; sizes or indices do not match.
    """

    __slots__ = ("block_ids", "block_indices", "group_sizes")

    def __init__(
        self,
        block_ids: npt.ArrayLike,
        group_sizes: Sequence[int] | None = None,
        block_indices: Sequence[int] | None = None,
    ) -> None:
        self.block_ids = as_ids("block_ids", block_ids)
        self.group_sizes = (
            (len(self.block_ids),) if group_sizes is None else _as_whole_numbers("group_sizes", group_sizes)
        )
        self.block_indices = (
            (0,) * len(self.group_sizes) if block_indices is None else _as_whole_numbers("block_indices", block_indices)
        )
        if min(self.group_sizes, default=0) < 0 or sum(self.group_sizes) != len(self.block_ids):
            raise ArgumentError(
                f"group_sizes must be at least 0 and sum to len(block_ids) = {len(self.block_ids)}, "
                f"got {self.group_sizes}"
            )
        if len(self.block_indices) != len(self.group_sizes) or min(self.block_indices, default=0) < 0:
            raise ArgumentError(
                f"block_indices must give one index of at least 0 for each of {len(self.group_sizes)} groups, "
                f"got {self.block_indices}"
            )

    def __repr__(self) -> str:
        return f"GPULoadStoreSpec({len(self.block_ids)} blocks, groups {self.group_sizes}, from {self.block_indices})"


def _as_whole_numbers(name: str, values: Sequence[int]) -> tuple[int, ...]:
    try:
        return tuple(operator.index(value) for value in values)
    except TypeError as error:
        raise ArgumentError(f"{name} must be whole numbers, one for each group, got {values!r}") from error


def _check_whole_number(name: str, value: int, *, least: int) -> None:
    try:
        fits = operator.index(value) >= least
    except TypeError:
        fits = False
    if not fits:
        raise ArgumentError(f"{name} must be a whole number of at least {least}, got {value!r:.100}")


@dataclass(frozen=True, slots=True)
class CanonicalKVCacheTensor:
    """One GPU tensor that holds a fragment of every block.

    Attributes:
        tensor: shape (num_blocks, ...), contiguous; any dtype.
        page_size_bytes: bytes of one row, padding included.
    """

    tensor: torch.Tensor
    page_size_bytes: int


@dataclass(frozen=True, slots=True)
class CanonicalKVCacheRef:
    """One layer's use of a tensor.

    Attributes:
        tensor_idx: index into `CanonicalKVCaches.tensors`.
        page_size_bytes: bytes of a row that this layer uses, from the row's start, without padding.

    Raises:
        ArgumentError: the index is below 0 or the size below 1, or one is not a whole number.
    """

    tensor_idx: int
    page_size_bytes: int

    def __post_init__(self) -> None:
        # Here and not with the tensors at hand: the pools are planned, by division, before those are looked at.
        _check_whole_number("CanonicalKVCacheRef.tensor_idx", self.tensor_idx, least=0)
        _check_whole_number("CanonicalKVCacheRef.page_size_bytes", self.page_size_bytes, least=1)


@dataclass(frozen=True, slots=True)
class CanonicalKVCaches:
    """All KV-cache memory of one worker.

    Attributes:
        tensors: the distinct tensors; groups may share them.
        group_data_refs: for each group, the tensors its blocks lie in, in layer order.
    """

    tensors: Sequence[CanonicalKVCacheTensor]
    group_data_refs: Sequence[Sequence[CanonicalKVCacheRef]]
