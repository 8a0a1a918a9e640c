from collections.abc import Sequence

import pytest

from aiokvoffload.copy.layout import lay_out
from aiokvoffload.copy.routes import check_pools
from aiokvoffload.cpu.common import PoolShape
from aiokvoffload.errors import ConfigError
from tests.copy.memory import CPU, Memory, caches_of

GROUPS = [[(0, 64)], [(1, 64)]]


@pytest.mark.parametrize(
    ("pools", "blocks_per_chunk", "message"),
    [
        ([PoolShape((0, 1), 64, 4)], [1], "each of 2 groups"),
        ([PoolShape((0, 1), 64, 4)], [1, 0], "at least 1"),
        ([PoolShape((0,), 64, 4)], [1, 1], r"each of 2 groups once, got \[0\]"),
        ([PoolShape((0, 1), 64, 4), PoolShape((1,), 64, 4)], [1, 1], r"got \[0, 1, 1\]"),
        ([PoolShape((0, 1), 64, 0)], [1, 1], "num_slots"),
        ([PoolShape((0, 1), 64, 4)], [1, 2], "pool of group 1 must be 128, got 64"),
    ],
)
def test_pools_that_do_not_fit_the_groups_are_refused(
    pools: Sequence[PoolShape], blocks_per_chunk: Sequence[int], message: str
) -> None:
    layout = lay_out(caches_of([8, 8], [64, 64], GROUPS), CPU)
    with pytest.raises(ConfigError, match=message):
        check_pools(layout, pools, blocks_per_chunk)


def test_slots_of_all_pools_have_places_of_their_own_in_one_table() -> None:
    pools = [PoolShape((1,), 128, 4), PoolShape((0,), 64, 6)]
    memory = Memory(caches_of([8, 8], [64, 64], GROUPS), pools, [1, 2])
    assert [(route.first_slot, route.num_slots) for route in memory.routes] == [(4, 6), (0, 4)]
    assert [route.pool_ptr for route in memory.routes] == [memory.arenas[1].address, memory.arenas[0].address]
    memory.close()
