"""What is counted of the keys that requests ask for."""

import asyncio

from aiokvoffload.config import GroupConfig
from tests.service.conftest import Stage, keys_of


async def test_lookups_and_loads_count_what_was_found_and_served() -> None:
    stage = Stage()
    async with stage.service as service:
        await stage.fill(keys_of(3))
        async with service.request("r") as request:
            assert request.lookup(keys_of(5)) == 3
            load = request.load(keys_of(5), range(5))
            await asyncio.sleep(0)
            stage.worker.finish_all()
            assert (await load).served == 3
        keys = service.statistics().keys
    assert (keys.looked_up, keys.found, keys.served_by_tier, keys.unserved) == (5, 3, (("cpu", 3),), 2)
    assert service.statistics().keys == keys


async def test_a_lookup_of_several_groups_counts_up_to_the_common_position() -> None:
    stage = Stage(groups=(GroupConfig(span=1), GroupConfig(span=2)))
    chains = [keys_of(6), keys_of(3, group_idx=1)]
    async with stage.service as service:
        await stage.fill(chains[0][:4])
        await stage.fill(chains[1][:1])
        async with service.request("r") as request:
            assert request.lookup(chains) == 2
        keys = service.statistics().keys
    assert (keys.looked_up, keys.found) == (9, 3)


async def test_a_closed_service_says_so() -> None:
    stage = Stage()
    async with stage.service as service:
        assert service.statistics().is_open
    assert not service.statistics().is_open
