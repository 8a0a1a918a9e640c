"""What the facts and the bytes of the CPU tier share: how slots are named and how the memory is divided."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from aiokvoffload.base import CanonicalKVCaches, LoadStoreSpec, as_ids
from aiokvoffload.config import CPUOffloadingConfig
from aiokvoffload.errors import ConfigError

CPU_MEDIUM = "CPU"
CPU_TIER = "cpu"
"""Name of this tier, in events and in results."""
PAGE_BYTES = 4096
"""Slots begin on pages: direct I/O of a lower tier needs it, and it costs nothing at real chunk sizes."""

_CHUNK_ID = np.dtype(np.int64)  # made once, since numpy takes as long to find it as to fill a short array


class CPULoadStoreSpec(LoadStoreSpec):
    """Slots of the CPU tier, one per chunk, groups in order.

    Attributes:
        chunk_ids: int64 array of slot indices, each within the pool that its group uses.

    Raises:
        ArgumentError: ids are not whole numbers, negative, or not one-dimensional.
    """

    __slots__ = ("chunk_ids",)

    def __init__(self, chunk_ids: npt.ArrayLike) -> None:
        self.chunk_ids = as_ids("chunk_ids", chunk_ids)

    def __repr__(self) -> str:
        return f"CPULoadStoreSpec({len(self.chunk_ids)} chunks)"


class KnownSlots(CPULoadStoreSpec):
    """Slots that are known to be right, since they come from the pool.

    Checking them again would cost as much as the other bookkeeping of a short chain.
    """

    __slots__ = ()

    def __init__(self, slots: Collection[int]) -> None:
        self.chunk_ids = np.fromiter(slots, _CHUNK_ID, len(slots))


@dataclass(frozen=True, slots=True)
class PoolShape:
    """One pool of equal slots, for all groups whose chunks are of one size.

    Attributes:
        groups: indices of the KV-cache groups that use it.
        chunk_bytes: payload of one slot, on one worker.
        num_slots: number of slots, the same on every worker.
    """

    groups: tuple[int, ...]
    chunk_bytes: int
    num_slots: int

    @property
    def row_bytes(self) -> int:
        """Bytes from one slot to the next: the payload padded to whole pages."""
        return -(-self.chunk_bytes // PAGE_BYTES) * PAGE_BYTES


def chunk_bytes_by_group(config: CPUOffloadingConfig, kv_caches: CanonicalKVCaches) -> tuple[int, ...]:
    """Payload of one chunk of each group, in bytes.

    Raises:
        ConfigError: the configuration names another number of groups than the memory has.
    """
    if len(config.groups) != len(kv_caches.group_data_refs):
        raise ConfigError(
            f"config.groups has {len(config.groups)} groups, kv_caches.group_data_refs has "
            f"{len(kv_caches.group_data_refs)}; they must be as many"
        )
    if empty := [index for index, refs in enumerate(kv_caches.group_data_refs) if not refs]:
        raise ConfigError(f"kv_caches.group_data_refs must give every group a tensor, groups {empty} have none")
    return tuple(
        group.blocks_per_chunk * sum(ref.page_size_bytes for ref in refs)
        for group, refs in zip(config.groups, kv_caches.group_data_refs, strict=True)
    )


def plan_pools(config: CPUOffloadingConfig, chunk_bytes: Sequence[int], num_workers: int = 1) -> tuple[PoolShape, ...]:
    """Divide `config.cpu_bytes`: one pool per distinct chunk size, by the weights of the groups in it.

    Raises:
        ConfigError: a pool would get no slot; the message says how many bytes are needed.
    """
    by_size: dict[int, list[int]] = {}
    for group_idx, size in enumerate(chunk_bytes):
        by_size.setdefault(size, []).append(group_idx)
    weights = {size: sum(_weight(config, g, size) for g in groups) for size, groups in by_size.items()}
    pools = []
    for size, groups in by_size.items():
        share_bytes = int(config.cpu_bytes * weights[size] / sum(weights.values()))
        slot_bytes = PoolShape(tuple(groups), size, 0).row_bytes * num_workers
        if share_bytes < slot_bytes:
            raise ConfigError(
                f"cpu_bytes={config.cpu_bytes} leaves {share_bytes} bytes for groups {groups}, "
                f"one slot of theirs takes {slot_bytes} ({num_workers} workers, rows of whole {PAGE_BYTES}-byte pages)"
            )
        pools.append(PoolShape(tuple(groups), size, share_bytes // slot_bytes))
    return tuple(pools)


def _weight(config: CPUOffloadingConfig, group_idx: int, chunk_bytes: int) -> float:
    group = config.groups[group_idx]
    return chunk_bytes / group.span if group.budget_weight is None else group.budget_weight
