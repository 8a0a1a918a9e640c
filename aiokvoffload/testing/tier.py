"""What every secondary tier must do, as a test class that authors of tiers subclass."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from aiokvoffload.base import (
    EventKind,
    LoadOutcome,
    OffloadKey,
    SecondaryTier,
    StoreOutcome,
    make_offload_key,
)
from aiokvoffload.errors import ArgumentError, ClosedError
from aiokvoffload.testing.pages import fill, holds, page_buffers

STORED, PRESENT = StoreOutcome.STORED, StoreOutcome.PRESENT
LOADED, MISS = LoadOutcome.LOADED, LoadOutcome.MISS


def tier_keys(*numbers: int, group_idx: int = 0) -> list[OffloadKey]:
    """Keys of one group, one per number."""
    return [make_offload_key(b"%08d" % number, group_idx) for number in numbers]


@dataclass
class TierRig:
    """A tier of one group under test, not opened yet, and what its chunks are.

    Attributes:
        tier: empty, with room for at least 8 chunks and at most 1,000.
        chunk_bytes: payload of one chunk on one worker.
        num_workers: buffers per chunk.

    Raises:
        ArgumentError: `chunk_bytes` is no number; a `TierShape` has one for each group.
    """

    tier: SecondaryTier
    chunk_bytes: int
    num_workers: int

    def __post_init__(self) -> None:
        if not isinstance(self.chunk_bytes, int):
            raise ArgumentError(f"chunk_bytes must be one group's bytes, a whole number, got {self.chunk_bytes!r}")

    async def store(self, *numbers: int) -> list[StoreOutcome]:
        """Store chunks whose bytes follow from their numbers, from buffers that are overwritten afterwards."""
        views = page_buffers(len(numbers), self.chunk_bytes, num_workers=self.num_workers)
        fill(views, *numbers)
        outcomes = await self.tier.store(tier_keys(*numbers), views)
        fill(views, *[0] * len(numbers))
        return list(outcomes)

    async def load(self, *numbers: int) -> list[LoadOutcome]:
        """Load chunks; those that are said to be loaded must have their bytes (I5)."""
        views = page_buffers(len(numbers), self.chunk_bytes, num_workers=self.num_workers)
        outcomes = list(await self.tier.load(tier_keys(*numbers), views))
        right = holds(views, *numbers)
        assert not [
            number
            for number, outcome, is_right in zip(numbers, outcomes, right, strict=True)
            if outcome is LOADED and not is_right
        ], "wrong bytes"
        return outcomes

    def contains(self, *numbers: int) -> list[bool]:
        """Which of the chunks the tier says that it has."""
        return list(self.tier.contains(tier_keys(*numbers)))


class SecondaryTierContract:
    """Subclass it, define `make_rig`, and pytest (pytest-asyncio in auto mode) holds the tier to its contract."""

    async def make_rig(self) -> TierRig:
        """A rig with a fresh, empty tier; one test uses one."""
        raise NotImplementedError

    @pytest.fixture
    async def rig(self) -> AsyncIterator[TierRig]:
        """The rig, open, and closed when the test is over."""
        rig = await self.make_rig()
        await rig.tier.open()
        yield rig
        await rig.tier.aclose()

    async def test_what_was_stored_comes_back_byte_for_byte(self, rig: TierRig) -> None:
        assert await rig.store(1, 2, 3) == [STORED] * 3
        assert await rig.load(1, 2, 3) == [LOADED] * 3

    async def test_any_part_in_any_order_comes_back(self, rig: TierRig) -> None:
        await rig.store(1, 2, 3, 4)
        assert await rig.load(4, 2) == [LOADED] * 2

    async def test_a_key_is_contained_once_it_is_stored_and_not_before(self, rig: TierRig) -> None:
        """I4."""
        assert rig.contains(1, 2) == [False, False]
        storing = asyncio.create_task(rig.store(1))
        while not storing.done():
            if rig.contains(1)[0]:
                assert await rig.load(1) == [LOADED]
            await asyncio.sleep(0)
        assert await storing == [STORED]
        assert rig.contains(1, 2) == [True, False]

    async def test_an_unknown_key_is_a_miss_and_spoils_no_other(self, rig: TierRig) -> None:
        await rig.store(1, 3)
        assert await rig.load(1, 2, 3) == [LOADED, MISS, LOADED]

    async def test_storing_again_says_that_it_is_present(self, rig: TierRig) -> None:
        await rig.store(1)
        assert await rig.store(1, 2) == [PRESENT, STORED]
        assert await rig.load(1, 2) == [LOADED] * 2

    async def test_two_stores_of_one_key_at_once_end_with_one_copy(self, rig: TierRig) -> None:
        """Fault 18."""
        outcomes = await asyncio.gather(rig.store(1, 2), rig.store(2, 1))
        assert sorted(outcome.value for each in outcomes for outcome in each) == ["present"] * 2 + ["stored"] * 2
        assert await rig.load(1, 2) == [LOADED] * 2

    async def test_many_loads_of_one_key_at_once_all_get_its_bytes(self, rig: TierRig) -> None:
        await rig.store(1)
        assert await asyncio.gather(*(rig.load(1) for _ in range(8))) == [[LOADED]] * 8

    async def test_no_keys_are_legal(self, rig: TierRig) -> None:
        """Fault 48."""
        assert await rig.store() == []
        assert await rig.load() == []

    async def test_what_does_not_fit_together_is_refused_before_anything_moves(self, rig: TierRig) -> None:
        """Fault 48."""
        views = page_buffers(2, rig.chunk_bytes, num_workers=rig.num_workers)
        short = page_buffers(1, rig.chunk_bytes + 1, num_workers=rig.num_workers)
        for keys, buffers in (
            (tier_keys(1, 2), views[:1]),
            (tier_keys(1, 1), views),
            (tier_keys(1), short),
            (tier_keys(1), [[]]),
            (tier_keys(1, group_idx=7), views[:1]),
        ):
            with pytest.raises(ArgumentError):
                await rig.tier.store(keys, buffers)
            with pytest.raises(ArgumentError):
                await rig.tier.load(keys, buffers)
        assert rig.contains(1) == [False]

    async def test_a_load_into_memory_that_cannot_be_written_is_refused(self, rig: TierRig) -> None:
        await rig.store(1)
        views = page_buffers(1, rig.chunk_bytes, num_workers=rig.num_workers)
        with pytest.raises(ArgumentError):
            await rig.tier.load(tier_keys(1), [[view.toreadonly() for view in views[0]]])

    async def test_more_than_fits_pushes_others_out_and_events_say_whom(self, rig: TierRig) -> None:
        """I9, I11: what the events say is what the tier says, and for each key stored and removed alternate."""
        held: set[OffloadKey] = set()
        for first in range(0, 1200, 4):
            numbers = range(first, first + 4)
            await rig.store(*numbers)
            for event in rig.tier.take_events():
                keys = set(event.keys)
                if event.kind is EventKind.STORED:
                    assert not held & keys
                    held |= keys
                else:
                    assert keys <= held
                    held -= keys
        everything = tier_keys(*range(1200))
        assert held == {key for key, has in zip(everything, rig.tier.contains(everything), strict=True) if has}
        assert 0 < len(held) < 1200
        kept = [int(key[:8]) for key in sorted(held)]
        assert await rig.load(*kept) == [LOADED] * len(kept)

    async def test_an_event_names_the_tier_and_its_medium(self, rig: TierRig) -> None:
        await rig.store(1, 2)
        (event,) = rig.tier.take_events()
        assert (event.kind, list(event.keys)) == (EventKind.STORED, tier_keys(1, 2))
        assert (event.tier, event.medium) == (rig.tier.name, rig.tier.medium)
        assert rig.tier.take_events() == []

    async def test_a_chunk_is_told_as_stored_when_it_can_be_loaded_and_not_before(self, rig: TierRig) -> None:
        """Fault 49, I4."""
        storing = asyncio.ensure_future(rig.store(1, 2))
        told: list[OffloadKey] = []
        while not storing.done():
            told += [key for event in rig.tier.take_events() for key in event.keys]
            assert all(rig.tier.contains(told))
            await asyncio.sleep(0)
        told += [key for event in rig.tier.take_events() for key in event.keys]
        assert told == tier_keys(1, 2)
        assert await rig.load(1, 2) == [LOADED, LOADED]

    async def test_whoever_asked_is_told_that_there_are_events(self, rig: TierRig) -> None:
        """Fault 49: what nobody takes, nobody hears of."""
        calls = 0

        def pending() -> None:
            nonlocal calls
            calls += 1

        rig.tier.on_events(pending)
        await rig.store(1)
        if type(rig.tier).on_events is not SecondaryTier.on_events:
            assert calls == 1
            await rig.store(2)
            assert (calls, len(rig.tier.take_events())) == (1, 2)
            await rig.store(3)
            assert calls == 2

    async def test_resident_keys_are_those_that_can_be_loaded(self, rig: TierRig) -> None:
        """Fault 49."""
        await rig.store(1, 2, 3)
        await rig.store(*range(10, 14))
        parts = rig.tier.resident_keys()
        if parts is not None:
            found = [key for part in parts for key in part]
            everything = tier_keys(*range(20))
            has = dict(zip(everything, rig.tier.contains(everything), strict=True))
            assert sorted(found) == sorted(key for key in everything if has[key])

    async def test_a_store_that_a_reset_overtakes_is_never_told(self, rig: TierRig) -> None:
        """Fault 53: late completions of the old epoch are ignored."""
        storing = asyncio.ensure_future(rig.store(1, 2))
        await asyncio.sleep(0)
        await rig.tier.reset()
        outcomes = await storing
        events = rig.tier.take_events()
        cleared = [event.kind for event in events].index(EventKind.CLEARED)
        told = [key for event in events[cleared + 1 :] for key in event.keys]
        assert (told, rig.contains(1, 2)) == ([], [False, False])
        assert STORED not in outcomes or events[0].kind is EventKind.STORED

    async def test_a_reset_forgets_everything_and_the_tier_serves_on(self, rig: TierRig) -> None:
        """Fault 53."""
        await rig.store(1, 2, 3)
        rig.tier.take_events()
        assert await rig.tier.reset() == 3
        assert [event.kind for event in rig.tier.take_events()] == [EventKind.CLEARED]
        assert rig.contains(1, 2, 3) == [False] * 3
        assert await rig.load(1, 2, 3) == [MISS] * 3
        assert await rig.store(1) == [STORED]
        assert await rig.load(1) == [LOADED]

    async def test_a_store_under_way_at_a_reset_leaves_no_trace(self, rig: TierRig) -> None:
        """Fault 53: what it brings is of the old epoch; unless the reset came after its end, and cleared it."""
        storing = asyncio.create_task(rig.store(1, 2))
        await asyncio.sleep(0)
        await rig.tier.reset()
        await storing
        assert rig.contains(1, 2) == [False] * 2
        assert await rig.load(1, 2) == [MISS] * 2

    async def test_outside_its_life_it_serves_nobody_and_closes_twice(self) -> None:
        rig = await self.make_rig()
        await self._serves_nobody(rig)
        await rig.tier.open()
        await rig.tier.aclose()
        await self._serves_nobody(rig)
        await rig.tier.aclose()

    async def _serves_nobody(self, rig: TierRig) -> None:
        with pytest.raises(ClosedError):
            await rig.store(1)
        with pytest.raises(ClosedError):
            await rig.load(1)

    async def test_a_close_waits_for_what_is_under_way(self) -> None:
        """I2: buffers are the caller's again only when its call has ended, which a close does not cut short."""
        rig = await self.make_rig()
        await rig.tier.open()
        storing = asyncio.create_task(rig.store(1, 2))
        await asyncio.sleep(0)
        await rig.tier.aclose()
        assert all(outcome in StoreOutcome for outcome in await storing)

    async def test_it_has_statistics_and_says_what_it_is(self, rig: TierRig) -> None:
        await rig.store(1)
        assert rig.tier.statistics() is not None
        assert "\n" not in repr(rig.tier)
