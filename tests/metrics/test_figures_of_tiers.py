"""The figures of each tier are true while it works, and no trouble with them reaches what it works for."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from aiokvoffload.metrics import MetricsCollector
from aiokvoffload.tiering.disk.tier import DiskTier
from aiokvoffload.tiering.manager import TieringOffloadingManager
from aiokvoffload.tiering.memory import MemoryTier
from tests.events.test_tiers import House
from tests.metrics.scene import value
from tests.service.conftest import keys_of

OWNERS = {"cpu": TieringOffloadingManager, "disk": DiskTier, "memory": MemoryTier}
STATES = ("free", "writing", "pinned", "evictable", "quarantined")


def slots(registry: CollectorRegistry, tier: str) -> dict[str, float]:
    families = list(registry.collect())
    figures = {state: value(families, "slots", tier=tier, pool="0", state=state) for state in STATES}
    assert min(figures.values()) >= 0
    assert sum(figures.values()) == value(families, "slot_capacity", tier=tier, pool="0")
    return figures


@pytest.mark.parametrize("tier", OWNERS)
async def test_slots_by_state_add_up_and_a_warm_cache_is_not_one_in_use(tier: str, tmp_path: Path) -> None:
    """Fault 51, I7: a gauge of use would read 1 whenever the cache is full of what could leave at once."""
    async with House(tmp_path) as house:
        registry = CollectorRegistry()
        registry.register(MetricsCollector(house.service))
        for keys in (keys_of(8), keys_of(4, name="more")):
            store = asyncio.create_task(house.store(keys))
            while not store.done():
                slots(registry, tier)
                await asyncio.sleep(0)
            await store
        figures = slots(registry, tier)
        assert figures["evictable"] >= 8
        assert figures["writing"] + figures["pinned"] == 0


@pytest.mark.parametrize("tier", OWNERS)
async def test_statistics_that_raise_cost_no_transfer_and_no_scrape(
    tier: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault 52: what is known last is what is told."""
    async with House(tmp_path) as house:
        registry = CollectorRegistry()
        registry.register(MetricsCollector(house.service))
        await house.store(keys_of(4))
        before = slots(registry, tier)

        def statistics(*_: Any) -> Any:
            raise RuntimeError("no figures today")

        with monkeypatch.context() as patch:
            patch.setattr(OWNERS[tier], "statistics", statistics)
            async with house.service.request("reader") as request:
                assert (await request.load(keys_of(4), range(8, 12))).served == 4
                assert (await request.store(keys_of(4, name="more"), range(4))).stored == 4
            assert slots(registry, tier) == before
        while slots(registry, tier) == before:  # the last four are on their way down
            await asyncio.sleep(0)
