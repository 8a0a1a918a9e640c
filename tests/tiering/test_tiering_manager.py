"""What the manager of several tiers decides, move by move, against what may never happen."""

from collections.abc import Iterator, Sequence
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from aiokvoffload.base import LookupResult, OffloadingEvent, OffloadKey, ReqContext
from aiokvoffload.config import GroupConfig
from aiokvoffload.cpu.common import PoolShape
from aiokvoffload.cpu.manager import CPUOffloadingManager
from aiokvoffload.errors import InternalError
from aiokvoffload.tiering.actions import Cascade, DroppedKeys, Hold, Promotion, Verdict
from aiokvoffload.tiering.config import CascadeMode
from aiokvoffload.tiering.manager import TieringOffloadingManager
from aiokvoffload.tiering.rules import SlotShares, TierRules
from tests.service.conftest import keys_of

NUM_SLOTS, PROMOTION_SLOTS, CASCADE_SLOTS, HEAD_ROOM = 8, 4, 2, 1
CTX = ReqContext("request")
KEYS = keys_of(12)


class Facts:
    """A tier that has what the test says."""

    medium = "MEMORY"

    def __init__(self, name: str) -> None:
        self.name, self.is_torn = name, False
        self.keys: set[OffloadKey] = set()

    def contains(self, keys: Sequence[OffloadKey]) -> Sequence[bool]:
        return [key in self.keys for key in keys]

    def take_events(self) -> list[OffloadingEvent]:
        return []

    def resident_keys(self) -> Iterator[Sequence[OffloadKey]]:
        yield tuple(self.keys)

    def check_integrity(self) -> None:
        if self.is_torn:
            raise InternalError(self.name)


def make_manager(
    *facts: Facts, cascade: CascadeMode = CascadeMode.WRITE_THROUGH, max_call_keys: int = 3, num_slots: int = NUM_SLOTS
) -> TieringOffloadingManager:
    pool = PoolShape((0,), 4096, num_slots)
    groups = (GroupConfig(),)
    shares = SlotShares(
        promotion=PROMOTION_SLOTS / NUM_SLOTS, head_room=HEAD_ROOM / NUM_SLOTS, cascade=CASCADE_SLOTS / NUM_SLOTS
    )
    rules = [TierRules(each, cascade, [max_call_keys]) for each in facts]
    primary = CPUOffloadingManager([pool], groups=groups)
    return TieringOffloadingManager(primary, rules, pools=[pool], groups=groups, shares=shares)


def test_slots_that_do_not_add_up_in_a_tier_below_are_told_too() -> None:
    upper, lower = Facts("upper"), Facts("lower")
    manager = make_manager(upper, lower)
    manager.check_integrity()
    lower.is_torn = True
    with pytest.raises(InternalError, match="lower"):
        manager.check_integrity()


def store(manager: TieringOffloadingManager, keys: Sequence[OffloadKey]) -> None:
    prepared = manager.prepare_store(keys, ReqContext(f"writer of {keys[0]!r}"))
    assert prepared is not None
    assert manager.complete_store(prepared.token)


def promote(manager: TieringOffloadingManager, keys: Sequence[OffloadKey], **options: Any) -> Promotion:
    plan = manager.plan_promotion(keys, CTX, **options)
    assert plan.promotion is not None
    return plan.promotion


def test_a_completed_store_goes_down_pinned_until_the_tier_has_read_it() -> None:
    manager = make_manager(Facts("disk"))
    store(manager, KEYS[:2])
    (cascade,) = manager.take_cascades()
    assert (cascade.tier, list(cascade.keys), len(cascade.slots)) == ("disk", KEYS[:2], 2)
    assert manager.primary.statistics().pools[0].pinned == 2
    manager.complete_cascade(cascade)
    assert manager.primary.statistics().pools[0].pinned == 0
    assert manager.take_cascades() == []


def test_a_failed_store_does_not_go_down() -> None:
    """I4."""
    manager = make_manager(Facts("disk"))
    prepared = manager.prepare_store(KEYS[:2], CTX)
    assert prepared is not None
    manager.complete_store(prepared.token, [KEYS[0]])
    assert [list(cascade.keys) for cascade in manager.take_cascades()] == [[KEYS[1]]]


def test_what_the_tier_has_does_not_go_down_again() -> None:
    disk = Facts("disk")
    disk.keys.add(KEYS[0])
    manager = make_manager(disk)
    store(manager, KEYS[:2])
    assert [list(cascade.keys) for cascade in manager.take_cascades()] == [[KEYS[1]]]


def test_only_so_many_slots_are_held_for_a_tier_and_the_rest_waits_unheld() -> None:
    """Fault 26: what leaves before its turn is dropped and counted."""
    manager = make_manager(Facts("disk"))
    store(manager, KEYS[:5])
    (cascade,) = manager.take_cascades()
    assert (list(cascade.keys), manager.cascading_slots) == (KEYS[:2], 2)
    manager.complete_cascade(cascade)
    assert [list(each.keys) for each in manager.take_cascades()] == [KEYS[2:4]]
    store(manager, keys_of(6, name="new"))
    assert manager.count_dropped("disk") == DroppedKeys(held=1)


def test_in_write_back_mode_chunks_go_down_when_they_are_about_to_leave() -> None:
    manager = make_manager(Facts("disk"), cascade=CascadeMode.WRITE_BACK, num_slots=1000)
    first, second = keys_of(500, name="first"), keys_of(400, name="second")
    store(manager, first)
    (*_, latest) = manager.take_cascades()
    # The tail of the oldest chain leaves first, and a tier is given it head first.
    going_down = [latest]
    while going_down[-1].keys[-1] != first[-1]:
        manager.complete_cascade(going_down[-1])
        going_down += manager.take_cascades()
    store(manager, second)
    assert not any(key in second for cascade in manager.take_cascades() for key in cascade.keys)


def test_a_chunk_that_a_tier_declined_is_not_offered_on_its_way_out_again() -> None:
    manager = make_manager(Facts("disk"), cascade=CascadeMode.WRITE_BACK)
    store(manager, KEYS[:2])
    (cascade,) = manager.take_cascades()
    manager.decline_cascade(cascade, cascade.keys)
    manager.complete_cascade(cascade)
    store(manager, KEYS[2:3])
    assert [list(each.keys) for each in manager.take_cascades()] == [[KEYS[2]]]


def test_a_tier_out_of_service_is_neither_counted_nor_given_anything() -> None:
    disk = Facts("disk")
    disk.keys.update(KEYS)
    manager = make_manager(disk)
    assert manager.lookup_prefix(KEYS, CTX) == 12
    manager.set_serving(loading=[], storing=[])
    assert manager.lookup_prefix(KEYS, CTX) == 0
    assert manager.lookup(KEYS[0], CTX) is LookupResult.MISS
    assert manager.plan_promotion(KEYS, CTX).verdict is Verdict.END
    store(manager, keys_of(1, name="new"))
    assert manager.take_cascades() == []


def test_a_promotion_ends_before_the_first_key_that_is_nowhere() -> None:
    """Fault 22."""
    disk = Facts("disk")
    disk.keys.update([*KEYS[:2], *KEYS[3:]])
    manager = make_manager(disk)
    assert list(promote(manager, KEYS).keys) == KEYS[:2]
    plan = manager.plan_promotion(KEYS, CTX)
    assert (plan.verdict, plan.skipped) == (Verdict.END, 2)


def test_a_key_on_its_way_up_is_pending_and_not_promoted_twice() -> None:
    """Fault 19."""
    disk = Facts("disk")
    disk.keys.update(KEYS)
    manager = make_manager(disk, max_call_keys=2)
    first = promote(manager, KEYS)
    assert manager.lookup(KEYS[0], CTX) is LookupResult.HIT_PENDING
    second = promote(manager, KEYS)
    assert (list(first.keys), list(second.keys)) == (KEYS[:2], KEYS[2:4])
    assert manager.complete_promotion(first)
    assert manager.lookup(KEYS[0], CTX) is LookupResult.HIT


def test_a_late_promotion_is_a_miss_at_once_and_its_slots_come_back_when_it_returns() -> None:
    """Fault 25, I7."""
    disk = Facts("disk")
    disk.keys.update(KEYS)
    manager = make_manager(disk)
    promotion = promote(manager, KEYS)
    manager.quarantine_promotion(promotion)
    assert manager.primary.lookup(KEYS[0], CTX) is LookupResult.MISS
    assert manager.primary.statistics().pools[0].quarantined == 3
    manager.check_integrity()
    assert not manager.complete_promotion(promotion)
    assert manager.primary.statistics().pools[0].free == NUM_SLOTS
    manager.check_integrity()


def test_a_promotion_of_an_old_epoch_makes_nothing_readable() -> None:
    """Fault 53."""
    disk = Facts("disk")
    disk.keys.update(KEYS)
    manager = make_manager(disk)
    promotion = promote(manager, KEYS)
    manager.reset_cache()
    assert not manager.complete_promotion(promotion)
    assert manager.primary.lookup(KEYS[0], CTX) is LookupResult.MISS
    manager.check_integrity()


def test_a_request_may_replace_what_it_has_used_when_nothing_else_can_leave() -> None:
    disk = Facts("disk")
    disk.keys.update(KEYS)
    manager = make_manager(disk, num_slots=4, max_call_keys=1)
    manager.on_new_request(CTX)
    for key in KEYS[:4]:
        assert manager.complete_promotion(promote(manager, [key]))
    assert manager.plan_promotion(KEYS[4:], CTX).verdict is Verdict.WAIT
    held = manager.hold(KEYS[3:4])
    assert held is not None
    assert manager.complete_promotion(promote(manager, KEYS[4:], own_may_leave=True))
    assert [manager.primary.lookup(key, CTX).value for key in KEYS[:5]] == ["hit", "hit", "miss", "hit", "hit"]
    manager.release(held)
    manager.check_integrity()


class Decisions(RuleBasedStateMachine):
    """Anything may happen in any order; slots add up, bounds hold, and no key is promoted twice at a time."""

    cascades = Bundle("cascades")
    promotions = Bundle("promotions")
    holds = Bundle("holds")
    stores = Bundle("stores")

    def __init__(self) -> None:
        super().__init__()
        self.disk, self.second = Facts("disk"), Facts("second")
        self.manager = make_manager(self.disk, self.second)
        self.on_their_way: list[OffloadKey] = []
        self.epoch = 0

    def taken(self) -> Any:
        return multiple(*self.manager.take_cascades())

    @rule(target=stores, start=st.integers(0, 11), count=st.integers(1, 6), number=st.integers(0, 3))
    def prepare_store(self, start: int, count: int, number: int) -> Any:
        prepared = self.manager.prepare_store(KEYS[start : start + count], ReqContext(f"writer-{number}"))
        return multiple() if prepared is None else prepared.token

    @rule(target=cascades, token=consumes(stores), fails=st.booleans())
    def complete_store(self, token: int, fails: bool) -> Any:
        keys = self.manager._storing.get(token, ())
        self.manager.complete_store(token, keys[:1] if fails else ())
        return self.taken()

    @rule(target=cascades, cascade=consumes(cascades), kept=st.booleans())
    def complete_cascade(self, cascade: Cascade, kept: bool) -> Any:
        if kept:
            (self.disk if cascade.tier == "disk" else self.second).keys.update(cascade.keys)
        else:
            self.manager.decline_cascade(cascade, cascade.keys)
        self.manager.complete_cascade(cascade)
        return self.taken()

    @rule(key=st.sampled_from(KEYS))
    def evict_below(self, key: OffloadKey) -> None:
        self.disk.keys.discard(key)

    @rule(target=promotions, start=st.integers(0, 11), number=st.integers(0, 3), own=st.booleans())
    def plan(self, start: int, number: int, own: bool) -> Any:
        keys = KEYS[start:]
        plan = self.manager.plan_promotion(keys, ReqContext(f"reader-{number}"), own_may_leave=own)
        if plan.promotion is None:
            return multiple()
        promoted = list(plan.promotion.keys)
        assert promoted == keys[plan.skipped : plan.skipped + len(promoted)]
        tier = self.disk if plan.promotion.tier == "disk" else self.second
        assert all(tier.contains(promoted))
        assert not set(promoted) & set(self.on_their_way)
        slots = self.manager.primary.statistics().pools[0]
        assert slots.free + slots.evictable >= HEAD_ROOM
        self.on_their_way += promoted
        return (plan.promotion, self.epoch)

    @rule(target=holds, ended=consumes(promotions), fails=st.booleans(), late=st.booleans(), hold=st.booleans())
    def complete_promotion(self, ended: tuple[Promotion, int], fails: bool, late: bool, hold: bool) -> Any:
        promotion, epoch = ended
        if late:
            self.manager.quarantine_promotion(promotion)
            assert self.manager.primary.lookup(promotion.keys[0], CTX) is not LookupResult.HIT or epoch != self.epoch
        failed = promotion.keys[:1] if fails else ()
        is_current = self.manager.complete_promotion(promotion, failed)
        assert is_current is (epoch == self.epoch and not late)
        if epoch == self.epoch:
            self.on_their_way = [key for key in self.on_their_way if key not in promotion.keys]
        held = self.manager.hold(promotion.keys) if hold and is_current else None
        return multiple() if held is None else held

    @rule(hold=consumes(holds))
    def release(self, hold: Hold) -> None:
        self.manager.release(hold)

    @rule()
    def reset(self) -> None:
        self.manager.reset_cache()
        self.on_their_way = []
        self.epoch += 1

    @rule(loading=st.booleans(), storing=st.booleans())
    def set_serving(self, loading: bool, storing: bool) -> None:
        every = ["disk", "second"]
        self.manager.set_serving(loading=every[loading:], storing=every[storing:])

    @invariant()
    def slots_add_up_and_bounds_hold(self) -> None:
        self.manager.check_integrity()
        assert 0 <= self.manager.promoting_slots <= PROMOTION_SLOTS
        assert 0 <= self.manager.cascading_slots <= CASCADE_SLOTS

    @invariant()
    def a_lookup_counts_exactly_what_is_somewhere(self) -> None:
        count = self.manager.lookup_prefix(KEYS, CTX)
        found = [self.manager.lookup(key, CTX) is not LookupResult.MISS for key in KEYS]
        assert count == (found.index(False) if False in found else len(KEYS))


Decisions.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestDecisions = Decisions.TestCase
