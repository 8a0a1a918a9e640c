"""A tier that misbehaves on command, and behaves otherwise."""

import asyncio

import pytest

from aiokvoffload.base import LoadOutcome, StoreOutcome
from aiokvoffload.errors import ArgumentError
from aiokvoffload.testing import tier as contract_module
from aiokvoffload.testing.pages import page_buffers
from aiokvoffload.testing.tier import SecondaryTierContract, TierRig, tier_keys
from aiokvoffload.testing.tier_faults import TORN_BYTE, FaultyTier
from aiokvoffload.tiering.memory import MemoryTier


@pytest.fixture
async def tier() -> FaultyTier:
    tier = FaultyTier(MemoryTier(8, [4096]))
    await tier.open()
    return tier


class TestFaultyTierWithoutCommands(SecondaryTierContract):
    async def make_rig(self) -> TierRig:
        return TierRig(FaultyTier(MemoryTier(8, [4096])), 4096, 1)


async def test_a_held_call_waits_until_it_is_released(tier: FaultyTier) -> None:
    rig = TierRig(tier, 4096, 1)
    tier.hold()
    storing = asyncio.create_task(rig.store(1))
    await tier.wait_for_calls(1)
    assert rig.contains(1) == [False]
    tier.release()
    assert await storing == [StoreOutcome.STORED]


async def test_a_failing_tier_fails_everything_and_changes_nothing(tier: FaultyTier) -> None:
    rig = TierRig(tier, 4096, 1)
    tier.failing = True
    assert await rig.store(1, 2) == [StoreOutcome.FAILED] * 2
    tier.failing = False
    assert await rig.load(1) == [LoadOutcome.MISS]


async def test_a_torn_load_leaves_half_of_something_else_and_says_that_it_failed(tier: FaultyTier) -> None:
    await TierRig(tier, 4096, 1).store(1, 2)
    tier.torn_keys.update(tier_keys(1))
    views = page_buffers(2, 4096)
    assert await tier.load(tier_keys(1, 2), views) == [LoadOutcome.FAILED, LoadOutcome.LOADED]
    assert bytes(views[0][0][:2048]) == bytes([TORN_BYTE]) * 2048
    assert "1 torn keys" in repr(tier)


def test_a_rig_wants_the_bytes_of_its_one_group() -> None:
    with pytest.raises(ArgumentError, match=r"chunk_bytes must be one group's bytes, .* got \(4096,\)"):
        TierRig(MemoryTier(8, [4096]), (4096,), 1)  # type: ignore[arg-type]


def test_contracts_tell_what_they_compared() -> None:
    """An author of a tier has nothing else to go by: plain asserts of an installed package say nothing."""
    assert "@pytest_ar" in dir(contract_module)  # what pytest's rewriting imports into a module
