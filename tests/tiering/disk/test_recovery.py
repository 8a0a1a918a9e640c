"""What becomes of rows of an earlier run, whatever goes wrong while they are read."""

from pathlib import Path

import pytest

from aiokvoffload.base import LoadOutcome, StoreOutcome
from aiokvoffload.registry import BUILTIN
from tests.tiering.disk.rig import disk_rig

STORED, LOADED = StoreOutcome.STORED, LoadOutcome.LOADED


@pytest.mark.parametrize("policy", BUILTIN["policies"])
async def test_every_policy_takes_over_what_a_restart_finds_and_goes_on_from_there(tmp_path: Path, policy: str) -> None:
    async with disk_rig(tmp_path, policy=policy) as rig:
        for first in range(0, 32, 8):
            assert await rig.store(*range(first, first + 8)) == [STORED] * 8
    async with disk_rig(tmp_path, policy=policy) as rig:
        assert rig.tier.statistics().recovered == 32
        rig.tier.check_integrity()
        assert await rig.load(*range(32)) == [LOADED] * 32
        for first in range(100, 200, 8):
            await rig.store(*range(first, first + 8))
        rig.tier.check_integrity()
        (pool,) = rig.tier.statistics().pools
        assert pool.evictable >= 32
