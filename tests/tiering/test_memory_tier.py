import pytest

from aiokvoffload.base import StoreOutcome
from aiokvoffload.errors import ConfigError
from aiokvoffload.testing.tier import SecondaryTierContract, TierRig
from aiokvoffload.tiering.memory import MemoryTier


class TestMemoryTier(SecondaryTierContract):
    async def make_rig(self) -> TierRig:
        return TierRig(MemoryTier(8, [5000], num_workers=2), 5000, 2)

    async def test_of_a_store_larger_than_the_tier_the_head_is_kept(self) -> None:
        rig = await self.make_rig()
        await rig.tier.open()
        outcomes = await rig.store(*range(10))
        assert outcomes == [StoreOutcome.STORED] * 8 + [StoreOutcome.REFUSED] * 2
        assert rig.tier.statistics().resident == 8
        await rig.tier.aclose()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((0, [4096]), "num_chunks must be at least 1"), ((1, []), "chunk_bytes"), ((1, [0]), "chunk_bytes")],
)
def test_a_tier_of_nothing_is_refused(arguments: tuple[int, list[int]], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        MemoryTier(*arguments)
