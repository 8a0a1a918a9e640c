"""From what pools and groups there are to the cache that fits them. Knows the kinds of caches, not their use."""

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

from aiokvoffload.base import CachePolicy, Residents
from aiokvoffload.cache.cache_set import CacheSet
from aiokvoffload.cache.chunk_cache import ChunkCache
from aiokvoffload.cache.sole_cache import SoleCache
from aiokvoffload.cache.tier_cache import TierCache
from aiokvoffload.config import GroupConfig
from aiokvoffload.cpu.common import PoolShape
from aiokvoffload.errors import ConfigError
from aiokvoffload.registry import resolve


def make_cache(
    pools: Sequence[PoolShape], groups: Sequence[GroupConfig], policy: str, *, grows: bool
) -> TierCache[Any]:
    """The cache of so many pools, each of which has a policy of this name.

    Args:
        pools: shapes of the pools; each group uses exactly one.
        groups: one entry per KV-cache group, in group order.
        policy: name of the cache policy.
        grows: whether the pools have no slots before they are told.

    Raises:
        ConfigError: the pools do not serve each group once, or the policy is unknown.
    """
    served = sorted(chain.from_iterable(pool.groups for pool in pools))
    if not groups or served != list(range(len(groups))):
        raise ConfigError(f"pools must serve each of {len(groups)} groups once, got {[pool.groups for pool in pools]}")
    make_policy = policy_maker(policy)
    if len(groups) == 1 and groups[0].window_chunks is None:
        return SoleCache(pools[0].num_slots, make_policy, span=groups[0].span, grows=grows)
    caches = [ChunkCache(pool.num_slots, make_policy, grows=grows) for pool in pools]
    cache_by_group = {group_idx: cache for cache, pool in zip(caches, pools, strict=True) for group_idx in pool.groups}
    return CacheSet(caches, groups=groups, cache_by_group=[cache_by_group[index] for index in range(len(groups))])


def policy_maker(name: str) -> Callable[[Residents], CachePolicy]:
    """What makes policies of this name.

    Raises:
        ConfigError: it is unknown. What is returned raises it too, where the policy raises anything when it is made.
    """
    policy: Callable[[Residents], CachePolicy] = resolve("policies", name)

    def make(residents: Residents) -> CachePolicy:
        try:
            return policy(residents)
        except Exception as error:  # it may be anybody's
            raise ConfigError(f"policy {name!r} cannot be made: {type(error).__name__}: {error}") from error

    return make
