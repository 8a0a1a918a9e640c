"""Tiers that were opened for nobody are closed, whoever loses patience meanwhile."""

import asyncio
import logging

import pytest

from aiokvoffload.errors import AbandonedError
from aiokvoffload.tiering.chain.closing import close_all
from aiokvoffload.tiering.memory import MemoryTier
from tests.tiering.stage import settle


class SlowTier(MemoryTier):
    """Takes its time to be closed, and may fail then."""

    def __init__(self, name: str, *, fails: bool = False) -> None:
        super().__init__(4, [4096], name=name)
        self.gate, self.closed, self._fails = asyncio.Event(), False, fails

    async def aclose(self) -> None:
        await self.gate.wait()
        if self._fails:
            raise AbandonedError("a read hangs")
        await super().aclose()
        self.closed = True


@pytest.mark.parametrize("turns", [0, 1, 5])
async def test_a_closing_that_is_cancelled_closes_every_tier_and_then_says_so(turns: int) -> None:
    tiers = [SlowTier("one"), SlowTier("two")]
    closing = asyncio.create_task(close_all(tiers))
    await settle()
    for _ in range(2):
        closing.cancel()
        await settle(turns)
    tiers[0].gate.set()
    await settle()
    closing.cancel()
    tiers[1].gate.set()
    await asyncio.wait([closing])
    assert closing.cancelled()
    assert [tier.closed for tier in tiers] == [True, True]


async def test_one_that_cannot_be_closed_keeps_no_other_open(caplog: pytest.LogCaptureFixture) -> None:
    tiers = [SlowTier("one", fails=True), SlowTier("two")]
    for tier in tiers:
        tier.gate.set()
    with caplog.at_level(logging.WARNING):
        await close_all(tiers)
    assert tiers[1].closed
    assert caplog.messages == ["tier one: it was opened for nobody, and could not be closed: a read hangs"]


async def test_nothing_to_close_takes_no_time() -> None:
    await close_all([])
