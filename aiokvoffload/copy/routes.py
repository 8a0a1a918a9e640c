"""Which pool the blocks of a group go to: layout, pools and host memory put together and checked."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from aiokvoffload.base import Ids
from aiokvoffload.copy.arena import HostArena
from aiokvoffload.copy.layout import GroupLayout, KVCacheLayout
from aiokvoffload.cpu.common import PoolShape
from aiokvoffload.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Route:
    """Where the blocks of one group go to and come from.

    Attributes:
        group_idx: which group.
        layout: the group's blocks in GPU memory.
        blocks_per_chunk: consecutive blocks of one chunk.
        pool_ptr: address of slot 0 of the group's pool.
        slot_bytes: bytes from one slot to the next.
        num_slots: slot ids are below it.
        first_slot: where the pool's slots begin in a table over all slots.
        piece_bytes: bytes of the pool registered in one go; no single copy may run over the end of such a piece.
    """

    group_idx: int
    layout: GroupLayout
    blocks_per_chunk: int
    pool_ptr: int
    slot_bytes: int
    num_slots: int
    first_slot: int
    piece_bytes: int

    def begin_pieces(self, host_ptrs: Ids) -> npt.NDArray[np.bool_]:
        """Which of these addresses in the pool are the first of a piece."""
        begins: npt.NDArray[np.bool_] = (host_ptrs - self.pool_ptr) % self.piece_bytes == 0
        return begins


def check_pools(layout: KVCacheLayout, pools: Sequence[PoolShape], blocks_per_chunk: Sequence[int]) -> None:
    """Check that each group has one pool, and slots of its chunks' size there.

    Raises:
        ConfigError: it does not.
    """
    if len(blocks_per_chunk) != len(layout.groups) or min(blocks_per_chunk) < 1:
        raise ConfigError(
            f"blocks_per_chunk must give at least 1 for each of {len(layout.groups)} groups, "
            f"got {tuple(blocks_per_chunk)}"
        )
    named = sorted(group_idx for pool in pools for group_idx in pool.groups)
    if named != list(range(len(layout.groups))):
        raise ConfigError(f"pools must name each of {len(layout.groups)} groups once, got {named}")
    for pool in pools:
        if pool.num_slots < 1:
            raise ConfigError(f"num_slots of every pool must be at least 1, got {pool}")
        for group_idx in pool.groups:
            chunk_bytes = blocks_per_chunk[group_idx] * layout.groups[group_idx].block_bytes
            if chunk_bytes != pool.chunk_bytes:
                raise ConfigError(
                    f"chunk_bytes of the pool of group {group_idx} must be {chunk_bytes}, got {pool.chunk_bytes}"
                )


def make_routes(
    layout: KVCacheLayout, pools: Sequence[PoolShape], arenas: Sequence[HostArena], blocks_per_chunk: Sequence[int]
) -> tuple[Route, ...]:
    """One route for each group, in group order; `pools` have passed `check_pools`, arena i is the memory of pool i."""
    routes, first_slot = {}, 0
    for pool, arena in zip(pools, arenas, strict=True):
        for group_idx in pool.groups:
            routes[group_idx] = Route(
                group_idx=group_idx,
                layout=layout.groups[group_idx],
                blocks_per_chunk=blocks_per_chunk[group_idx],
                pool_ptr=arena.address,
                slot_bytes=pool.row_bytes,
                num_slots=pool.num_slots,
                first_slot=first_slot,
                piece_bytes=arena.piece_bytes,
            )
        first_slot += pool.num_slots
    return tuple(routes[group_idx] for group_idx in sorted(routes))
