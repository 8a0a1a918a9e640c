"""How the CPU memory is divided among groups."""

import pytest
import torch

from aiokvoffload.base import CanonicalKVCacheRef, CanonicalKVCaches, CanonicalKVCacheTensor
from aiokvoffload.config import CPUOffloadingConfig, GroupConfig
from aiokvoffload.cpu.common import PAGE_BYTES, PoolShape, chunk_bytes_by_group, plan_pools
from aiokvoffload.errors import ConfigError


def config_of(*groups: GroupConfig, cpu_pages: int = 64) -> CPUOffloadingConfig:
    return CPUOffloadingConfig(cpu_bytes=cpu_pages * PAGE_BYTES, groups=groups)


def test_groups_of_one_chunk_size_share_a_pool() -> None:
    pools = plan_pools(config_of(GroupConfig(), GroupConfig()), [PAGE_BYTES, PAGE_BYTES])
    assert pools == (PoolShape((0, 1), PAGE_BYTES, 64),)


def test_other_chunk_sizes_get_pools_that_hold_as_many_positions() -> None:
    small, big = plan_pools(config_of(GroupConfig(), GroupConfig()), [PAGE_BYTES, 3 * PAGE_BYTES])
    assert (small.num_slots, big.num_slots) == (16, 16)


def test_a_weight_overrides_that() -> None:
    groups = (GroupConfig(budget_weight=1), GroupConfig(budget_weight=0.5))
    small, big = plan_pools(config_of(*groups, cpu_pages=60), [PAGE_BYTES, 2 * PAGE_BYTES])
    assert (small.num_slots, big.num_slots) == (40, 10)


def test_slots_are_rows_of_whole_pages_on_every_worker() -> None:
    (pool,) = plan_pools(config_of(GroupConfig()), [PAGE_BYTES + 1], num_workers=4)
    assert (pool.row_bytes, pool.num_slots) == (2 * PAGE_BYTES, 8)


def test_too_little_memory_says_how_much_a_slot_takes() -> None:
    with pytest.raises(ConfigError, match=f"one slot of theirs takes {128 * PAGE_BYTES}"):
        plan_pools(config_of(GroupConfig()), [128 * PAGE_BYTES])


def test_a_chunk_is_all_layers_of_its_blocks() -> None:
    tensor = CanonicalKVCacheTensor(torch.zeros((4, 96), dtype=torch.uint8), 96)
    caches = CanonicalKVCaches([tensor, tensor], [[CanonicalKVCacheRef(0, 96), CanonicalKVCacheRef(1, 64)]])
    assert chunk_bytes_by_group(config_of(GroupConfig(blocks_per_chunk=3)), caches) == (480,)


def test_groups_that_do_not_match_the_memory_are_refused() -> None:
    tensor = CanonicalKVCacheTensor(torch.zeros((4, 96), dtype=torch.uint8), 96)
    with pytest.raises(ConfigError, match=r"config.groups has 2 groups, kv_caches.group_data_refs has 1"):
        chunk_bytes_by_group(
            config_of(GroupConfig(), GroupConfig()), CanonicalKVCaches([tensor], [[CanonicalKVCacheRef(0, 96)]])
        )
    with pytest.raises(ConfigError, match=r"groups \[0\] have none"):
        chunk_bytes_by_group(config_of(GroupConfig()), CanonicalKVCaches([tensor], [[]]))
