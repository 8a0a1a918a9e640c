"""A snapshot that is gathered while everything changes is what was true at its number (I9, I10)."""

import asyncio
import random
from collections.abc import Iterator

import pytest

from aiokvoffload.base import EventKind, OffloadingEvent, OffloadKey, RemovalReason, ResidentPart, make_offload_key
from aiokvoffload.errors import BusyError
from aiokvoffload.events import EventBus

KEYS = [make_offload_key(b"%032d" % number, 0) for number in range(200)]
TIERS = {"cpu": "CPU", "disk": "DISK"}
PARTS = 8

State = dict[str, set[OffloadKey]]


class Tiers:
    """Two tiers that change at every pass of the loop, and what they held at each number."""

    def __init__(self, seed: int, max_pending: int = 1000) -> None:
        self.chance = random.Random(seed)  # noqa: S311 - no secret
        self.bus = EventBus(max_pending)
        self.held: State = {tier: set() for tier in TIERS}
        self.states: dict[int, State] = {-1: self.copy()}
        self.bus.use_source(self.source)

    def copy(self) -> State:
        return {tier: set(keys) for tier, keys in self.held.items()}

    def source(self) -> Iterator[ResidentPart]:
        for tier, medium in TIERS.items():
            for number in range(PARTS):
                keys = [key for key in self.held[tier] if int(key[:-4]) % PARTS == number]
                yield ResidentPart(medium, tier, keys)

    def change(self) -> None:
        tier = self.chance.choice(list(TIERS))
        some, held = set(self.chance.sample(KEYS, 20)), self.held[tier]
        if self.chance.random() < 0.1:
            held.clear()
            self.tell(EventKind.CLEARED, (), tier, RemovalReason.RESET)
        elif self.chance.random() < 0.5:
            self.tell(EventKind.STORED, tuple(some - held), tier)
            held |= some
        else:
            self.tell(EventKind.REMOVED, tuple(some & held), tier, RemovalReason.EVICTED)
            held -= some
        self.states[self.bus.latest] = self.copy()

    def tell(
        self, kind: EventKind, keys: tuple[OffloadKey, ...], tier: str, reason: RemovalReason | None = None
    ) -> None:
        self.bus.publish([OffloadingEvent(kind, keys, TIERS[tier], tier, reason)])


@pytest.mark.parametrize("seed", range(30))
async def test_it_is_exact_at_its_number_whatever_happens_meanwhile(seed: int) -> None:
    tiers = Tiers(seed)
    for _ in range(20):
        tiers.change()
    snapping = asyncio.ensure_future(tiers.bus.snapshot())
    while not snapping.done():
        tiers.change()
        await asyncio.sleep(0)
    snapshot = await snapping
    assert snapshot.sequence > 20
    found = {tier.tier: [key for part in tier.parts for key in part] for tier in snapshot.tiers}
    state = tiers.states[snapshot.sequence]
    assert {tier: set(keys) for tier, keys in found.items()} == state
    assert {tier: len(keys) for tier, keys in found.items()} == {tier: len(keys) for tier, keys in state.items()}


async def test_only_the_media_asked_for_are_in_it() -> None:
    tiers = Tiers(0)
    tiers.change()
    snapshot = await tiers.bus.snapshot(media=["DISK"])
    assert [tier.tier for tier in snapshot.tiers] == ["disk"]


async def test_more_changes_than_are_kept_are_refused_and_not_guessed() -> None:
    """I11."""
    tiers = Tiers(0, max_pending=2)
    snapping = asyncio.ensure_future(tiers.bus.snapshot())
    while not snapping.done():
        for _ in range(3):
            tiers.change()
        await asyncio.sleep(0)
    with pytest.raises(BusyError, match="3 times more than 2 records were published"):
        await snapping
