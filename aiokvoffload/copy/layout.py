"""From tensors to pointers: where the bytes of a block lie in GPU memory.

Knows the engine's tensors, checks that a block id means what it should in each of them, and keeps them alive (a tensor
released while a store is queued would be copied from after its memory was given to someone else). Knows no slots.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from aiokvoffload.base import CanonicalKVCacheRef, CanonicalKVCaches, CanonicalKVCacheTensor, Ids
from aiokvoffload.errors import ConfigError


@dataclass(frozen=True, slots=True)
class GroupLayout:
    """One KV-cache group: its tensors in layer order.

    Attributes:
        base_ptrs: address of row 0 of each tensor.
        row_bytes: bytes from one row of each tensor to the next.
        fragment_bytes: bytes of a row that belong to a block, from the row's start.
        fragment_offsets: where each tensor's fragment begins within a block's part of a slot.
        num_blocks: rows of every tensor: block ids are below it.
        spaces: where this group's block ids begin in a table over all physical blocks; one entry for each set of
            tensors that the same groups share, since only there two groups' equal ids are the same memory.
        block_bytes: of one block over all its tensors.
    """

    base_ptrs: Ids
    row_bytes: Ids
    fragment_bytes: Ids
    fragment_offsets: Ids
    num_blocks: int
    spaces: tuple[int, ...]
    block_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        # Added up once: every job asks for it several times.
        object.__setattr__(self, "block_bytes", int(self.fragment_bytes.sum()))


@dataclass(frozen=True, slots=True)
class KVCacheLayout:
    """All groups of one worker.

    Attributes:
        groups: in group order.
        num_physical_blocks: size of a table over all physical blocks (see `GroupLayout.spaces`).
        tensors: the engine's tensors, held so that they outlive every copy (fault 12).
    """

    groups: tuple[GroupLayout, ...]
    num_physical_blocks: int
    tensors: tuple[torch.Tensor, ...]


def lay_out(kv_caches: CanonicalKVCaches, torch_device: torch.device) -> KVCacheLayout:
    """Check the engine's tensors and note their addresses.

    Raises:
        ConfigError: a tensor is not contiguous, lies on another device or over another one, its rows are not of the
            size given, or a group refers to tensors that do not fit together; the message says which.
    """
    for idx, entry in enumerate(kv_caches.tensors):
        _check_tensor(idx, entry, torch_device)
    _check_overlaps(kv_caches.tensors)
    if not kv_caches.group_data_refs:
        raise ConfigError("kv_caches.group_data_refs must name at least one group, got none")
    for group_idx in range(len(kv_caches.group_data_refs)):
        _check_group(group_idx, kv_caches)
    starts, num_physical_blocks = _block_spaces(kv_caches)
    groups = tuple(_group_layout(kv_caches, group_idx, starts) for group_idx in range(len(kv_caches.group_data_refs)))
    return KVCacheLayout(groups, num_physical_blocks, tuple(entry.tensor for entry in kv_caches.tensors))


def _check_tensor(idx: int, entry: CanonicalKVCacheTensor, torch_device: torch.device) -> None:
    name, tensor = f"kv_caches.tensors[{idx}]", getattr(entry, "tensor", None)
    if not isinstance(entry, CanonicalKVCacheTensor) or not isinstance(tensor, torch.Tensor):
        got = f"one of a {type(tensor).__name__}" if isinstance(entry, CanonicalKVCacheTensor) else type(entry).__name__
        raise ConfigError(f"{name} must be a CanonicalKVCacheTensor of a torch.Tensor, got {got}")
    if tensor.dim() < 1 or tensor.shape[0] < 1 or not tensor.is_contiguous():
        raise ConfigError(f"{name} must be contiguous with at least one row, got shape {tuple(tensor.shape)}")
    if tensor.device != torch_device:
        raise ConfigError(f"{name} must be on {torch_device}, got {tensor.device}")
    row_bytes = tensor[0].numel() * tensor.element_size()
    if row_bytes < 1 or row_bytes != entry.page_size_bytes:
        raise ConfigError(f"{name}.page_size_bytes must be its row's {row_bytes} bytes, got {entry.page_size_bytes}")


def _check_overlaps(tensors: Sequence[CanonicalKVCacheTensor]) -> None:
    ranges = sorted(
        (entry.tensor.data_ptr(), entry.tensor.data_ptr() + entry.tensor.nbytes, idx)
        for idx, entry in enumerate(tensors)
    )
    for (_, end, first), (start, _, second) in itertools.pairwise(ranges):
        if start < end:
            raise ConfigError(f"kv_caches.tensors[{first}] and kv_caches.tensors[{second}] overlap in memory")


def _check_group(group_idx: int, kv_caches: CanonicalKVCaches) -> None:
    name, refs = f"kv_caches.group_data_refs[{group_idx}]", kv_caches.group_data_refs[group_idx]
    if wrong := [ref for ref in refs if not isinstance(ref, CanonicalKVCacheRef)]:
        raise ConfigError(f"{name} must hold CanonicalKVCacheRef records, got {wrong[0]!r:.100}")
    indices = [ref.tensor_idx for ref in refs]
    if not indices or len(set(indices)) != len(indices):
        raise ConfigError(f"{name} must name at least one tensor and each once, got {indices}")
    for ref in refs:
        if not 0 <= ref.tensor_idx < len(kv_caches.tensors):
            raise ConfigError(f"{name}: tensor_idx must be below {len(kv_caches.tensors)}, got {ref.tensor_idx}")
        page_size_bytes = kv_caches.tensors[ref.tensor_idx].page_size_bytes
        if not 0 < ref.page_size_bytes <= page_size_bytes:
            raise ConfigError(
                f"{name}: page_size_bytes must be in [1, {page_size_bytes}] for tensor {ref.tensor_idx}, "
                f"got {ref.page_size_bytes}"
            )
    rows = {kv_caches.tensors[idx].tensor.shape[0] for idx in indices}
    if len(rows) > 1:
        raise ConfigError(f"{name}: all tensors must have as many rows, got {sorted(rows)}")


def _block_spaces(kv_caches: CanonicalKVCaches) -> tuple[dict[int, int], int]:
    """Where each tensor's rows begin in the table of physical blocks; tensors of the same groups share their rows."""
    groups_of: dict[int, list[int]] = {}
    for group_idx, refs in enumerate(kv_caches.group_data_refs):
        for ref in refs:
            groups_of.setdefault(ref.tensor_idx, []).append(group_idx)
    start_of_sharers: dict[tuple[int, ...], int] = {}
    starts, end = {}, 0
    for tensor_idx, groups in groups_of.items():
        sharers = tuple(groups)
        if sharers not in start_of_sharers:
            start_of_sharers[sharers] = end
            end += kv_caches.tensors[tensor_idx].tensor.shape[0]
        starts[tensor_idx] = start_of_sharers[sharers]
    return starts, end


def _group_layout(kv_caches: CanonicalKVCaches, group_idx: int, starts: dict[int, int]) -> GroupLayout:
    refs = kv_caches.group_data_refs[group_idx]
    tensors = [kv_caches.tensors[ref.tensor_idx] for ref in refs]
    fragment_bytes = np.array([ref.page_size_bytes for ref in refs], dtype=np.int64)
    return GroupLayout(
        base_ptrs=np.array([entry.tensor.data_ptr() for entry in tensors], dtype=np.int64),
        row_bytes=np.array([entry.page_size_bytes for entry in tensors], dtype=np.int64),
        fragment_bytes=fragment_bytes,
        fragment_offsets=np.cumsum(fragment_bytes) - fragment_bytes,
        num_blocks=int(tensors[0].tensor.shape[0]),
        spaces=tuple(sorted({starts[ref.tensor_idx] for ref in refs})),
    )
