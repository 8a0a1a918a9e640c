"""Routes over real small memory, for tests of plans and engines."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from aiokvoffload.base import CanonicalKVCacheRef, CanonicalKVCaches, CanonicalKVCacheTensor
from aiokvoffload.copy.arena import FILLED, ArenaOptions, HostArena, map_pools
from aiokvoffload.copy.layout import KVCacheLayout, lay_out
from aiokvoffload.copy.routes import Route, make_routes
from aiokvoffload.copy.selection import Selector
from aiokvoffload.cpu.common import PoolShape
from aiokvoffload.device.host import HostDevice

CPU = torch.device("cpu")


def caches_of(
    rows: Sequence[int], page_bytes: Sequence[int], groups: Sequence[Sequence[tuple[int, int]]]
) -> CanonicalKVCaches:
    """Tensors of `rows[i]` rows of `page_bytes[i]`; a group is (tensor index, bytes used) pairs."""
    tensors = [torch.zeros((count, size), dtype=torch.uint8) for count, size in zip(rows, page_bytes, strict=True)]
    return CanonicalKVCaches(
        [CanonicalKVCacheTensor(tensor, tensor.shape[1]) for tensor in tensors],
        [[CanonicalKVCacheRef(idx, used) for idx, used in group] for group in groups],
    )


@dataclass
class Memory:
    """A layout with its pools on the host device; to be closed."""

    kv_caches: CanonicalKVCaches
    pools: Sequence[PoolShape]
    blocks_per_chunk: Sequence[int]
    options: ArenaOptions = FILLED

    def __post_init__(self) -> None:
        self.device = HostDevice()
        self.layout: KVCacheLayout = lay_out(self.kv_caches, CPU)
        self.arenas: tuple[HostArena, ...] = map_pools(self.pools, self.device, options=self.options)
        self.routes: tuple[Route, ...] = make_routes(self.layout, self.pools, self.arenas, self.blocks_per_chunk)
        num_slots = sum(pool.num_slots for pool in self.pools)
        self.selector = Selector(self.routes, self.layout.num_physical_blocks, num_slots)

    def close(self) -> None:
        for arena in self.arenas:
            arena.close()
        self.device.close()
