"""The facts of several tiers: what can be served from anywhere, what goes down, what comes up, and what must wait.

It moves no byte and waits for nothing: it gives actions, which the chain performs and reports back. Slots and order are
those of the primary manager, which it wraps; what a secondary tier keeps is that tier's own business. One owner thread
calls it.
"""

from collections.abc import Collection, Iterator, Sequence

from aiokvoffload.base import (
    LookupResult,
    OffloadingEvent,
    OffloadingManager,
    OffloadKey,
    PrepareLoadOutput,
    PrepareStoreOutput,
    ReqContext,
    ResidentPart,
    get_offload_group_idx,
)
from aiokvoffload.cache.prefix import longest_common_position
from aiokvoffload.cache.statistics import ManagerStatistics
from aiokvoffload.config import GroupConfig
from aiokvoffload.cpu.common import PoolShape
from aiokvoffload.cpu.manager import CPUOffloadingManager
from aiokvoffload.tiering.actions import Cascade, DroppedKeys, Hold, Promotion, PromotionPlan, Verdict, slots_of
from aiokvoffload.tiering.budget import SlotBudget
from aiokvoffload.tiering.cascades import Cascades
from aiokvoffload.tiering.presence import Presence, count_leading
from aiokvoffload.tiering.rules import SlotShares, TierRules

_DEFAULT_SHARES = SlotShares()


class TieringOffloadingManager(OffloadingManager):
    """The manager of CPU memory and of the tiers below it.

    Args:
        primary: of CPU memory.
        rules: of the secondary tiers, the one to be asked first in front.
        pools: of the primary tier.
        groups: the KV-cache groups.
        shares: how much of each pool promotions and cascades may take.
    """

    def __init__(
        self,
        primary: CPUOffloadingManager,
        rules: Sequence[TierRules],
        *,
        pools: Sequence[PoolShape],
        groups: Sequence[GroupConfig],
        shares: SlotShares = _DEFAULT_SHARES,
    ) -> None:
        self.primary = primary
        self._rules = {each.name: each for each in rules}
        self._groups = tuple(groups)
        self._presence = Presence(primary, [each.facts for each in rules])
        pool_of_group = {group_idx: index for index, pool in enumerate(pools) for group_idx in pool.groups}
        sizes = [pool.num_slots for pool in pools]
        self._promoting = SlotBudget([max(1, int(size * shares.promotion)) for size in sizes], pool_of_group)
        self._head_room = {
            group_idx: min(sizes[pool] - 1, int(sizes[pool] * shares.head_room))
            for group_idx, pool in pool_of_group.items()
        }
        cascading = SlotBudget([max(1, int(size * shares.cascade)) for size in sizes], pool_of_group)
        self._cascades = Cascades(primary, rules, cascading)
        self._storing: dict[int, Sequence[OffloadKey]] = {}

    @property
    def cascading_slots(self) -> int:
        """Slots held for tiers that have not read them yet."""
        return self._cascades.slots

    @property
    def promoting_slots(self) -> int:
        """Slots of chunks on their way up and not used yet, quarantined ones included."""
        return self._promoting.used

    def lookup(self, key: OffloadKey, ctx: ReqContext) -> LookupResult:
        """What CPU memory says, or a hit if a tier in service has the key."""
        result = self.primary.lookup(key, ctx)
        if result is LookupResult.MISS and self._presence.is_below(key):
            return LookupResult.HIT
        return result

    def lookup_prefix(self, keys: Sequence[OffloadKey], ctx: ReqContext) -> int:
        """Number of leading keys that are in some tier in service, or on their way into CPU memory."""
        count = self.primary.lookup_prefix(keys, ctx)
        return count if count == len(keys) else len(self._presence.find_leading(keys))

    def absent(self, keys: Sequence[OffloadKey], ctx: ReqContext) -> Sequence[OffloadKey]:
        """The distinct keys that are in no tier in service."""
        return [key for key in self.primary.absent(keys, ctx) if not self._presence.is_below(key)]

    def lookup_groups(self, keys_by_group: Sequence[Sequence[OffloadKey]], ctx: ReqContext) -> int:
        """The longest common position over all tiers in service."""
        self.primary.lookup_groups(keys_by_group, ctx)  # refuses what is wrong with the keys
        return longest_common_position(keys_by_group, self._groups, [self._presence] * len(self._groups))

    def prepare_load(self, keys: Sequence[OffloadKey], ctx: ReqContext) -> PrepareLoadOutput:
        """Pin the leading keys that are readable in CPU memory now."""
        return self.primary.prepare_load(keys, ctx)

    def complete_load(self, token: int, failed_keys: Collection[OffloadKey] = ()) -> bool:
        """Release a load's pins."""
        return self.primary.complete_load(token, failed_keys)

    def prepare_store(self, keys: Sequence[OffloadKey], ctx: ReqContext) -> PrepareStoreOutput | None:
        """Reserve slots of CPU memory.

        None is declined for its worth: what does not pass through CPU memory, no tier below ever gets.
        """
        prepared = self.primary.prepare_store(keys, ctx, may_decline=False)
        if prepared is not None and prepared.keys_to_store:
            self._storing[prepared.token] = prepared.keys_to_store
            self._cascades.evicted(prepared.evicted_keys)
        return prepared

    def complete_store(self, token: int, failed_keys: Collection[OffloadKey] = ()) -> bool:
        """Make the keys readable; what is to go down because of it is among `take_cascades`."""
        is_current = self.primary.complete_store(token, failed_keys)
        stored = self._storing.pop(token, ())
        if is_current and stored:
            failed = frozenset(failed_keys)
            self._cascades.stored([key for key in stored if key not in failed] if failed else stored)
        return is_current

    def take_cascades(self) -> list[Cascade]:
        """What is to go down since the last call."""
        return self._cascades.take()

    def complete_cascade(self, cascade: Cascade) -> None:
        """The tier touches the slots no more, whatever became of the keys."""
        self._cascades.complete(cascade)

    def count_dropped(self, tier: str) -> DroppedKeys:
        """Keys that were owed to a tier and not offered to it."""
        return self._cascades.count_dropped(tier)

    def is_owed(self, tier: str) -> bool:
        """Whether keys are still to go down to a tier, those included that are being stored in CPU memory."""
        return self._cascades.is_owed(tier, storing=bool(self._storing))

    def end_cascades(self, tier: str) -> None:
        """A tier is being closed: what is owed to it is dropped, and counted so."""
        self._cascades.end(tier)

    def decline_cascade(self, cascade: Cascade, keys: Collection[OffloadKey]) -> None:
        """The tier did not keep these keys: they are not offered again on their way out."""
        self._cascades.decline(cascade.tier, keys)

    def can_promote(self, keys: Sequence[OffloadKey], excluded: Collection[str] = ()) -> bool:
        """Whether the first key is absent from CPU memory, and a tier that may be asked has it."""
        return bool(self._source_of(keys[:1], excluded)[1])

    def plan_promotion(
        self,
        keys: Sequence[OffloadKey],
        ctx: ReqContext,
        *,
        excluded: Collection[str] = (),
        own_may_leave: bool = False,
    ) -> PromotionPlan:
        """The next step on a chain that is to come up; never beyond the first key that is nowhere (fault 22).

        Args:
            keys: of one group, in chain order.
            ctx: who wants them.
            excluded: tiers that are not to be asked.
            own_may_leave: whether keys of the same request may leave for these, where nothing else can.
        """
        skipped = self.primary.lookup_prefix(keys, ctx)
        tier, wanted = self._source_of(keys[skipped:], excluded)
        if not wanted:
            return PromotionPlan(Verdict.END, skipped)
        group_idx = get_offload_group_idx(wanted[0])
        room = self._room_for_promotion(group_idx)
        prepared = None
        if room > 0:
            prepared = self.primary.prepare_promotion(wanted[:room], ctx, own_may_leave=own_may_leave)
        if prepared is None:
            return PromotionPlan(Verdict.WAIT, skipped)
        self._cascades.evicted(prepared.evicted_keys)
        self._promoting.take(group_idx, len(prepared.keys_to_store))
        promotion = Promotion(tier, prepared.token, prepared.keys_to_store, slots_of(prepared.spec))
        return PromotionPlan(Verdict.PROMOTE, skipped, promotion)

    def _source_of(self, keys: Sequence[OffloadKey], excluded: Collection[str]) -> tuple[str, Sequence[OffloadKey]]:
        """The first tier that has the first key, and the leading keys to be asked of it in one call."""
        for facts in self._presence.serving if keys else ():
            if facts.name not in excluded:
                wanted = keys[: self._rules[facts.name].max_call_keys[get_offload_group_idx(keys[0])]]
                wanted = wanted[: count_leading(facts.contains(wanted))]
                if wanted:
                    return facts.name, wanted[: self._presence.count_absent_above(wanted)]
        return "", ()

    def complete_promotion(self, promotion: Promotion, failed_keys: Collection[OffloadKey] = ()) -> bool:
        """The tier touches the slots no more: all keys but the failed ones are readable.

        Returns:
            False if nothing became readable: the cache was reset, or the slots had been quarantined.
        """
        self._promoting.give(get_offload_group_idx(promotion.keys[0]), len(promotion.keys))
        return self.primary.complete_store(promotion.token, failed_keys)

    def quarantine_promotion(self, promotion: Promotion) -> None:
        """The tier is late: its keys are a MISS at once, their slots quarantined until `complete_promotion`."""
        self.primary.quarantine_store(promotion.token)

    def hold(self, keys: Sequence[OffloadKey]) -> Hold | None:
        """Pin promoted keys until whoever wanted them has pinned them; they count as under promotion till then."""
        token, pinned, _ = self.primary.pin(keys)
        if not pinned:
            return None
        self._promoting.take(get_offload_group_idx(pinned[0]), len(pinned))
        return Hold(token, pinned)

    def release(self, hold: Hold) -> None:
        """End a hold."""
        self._promoting.give(get_offload_group_idx(hold.keys[0]), len(hold.keys))
        self.primary.complete_load(hold.token)

    def not_here(self, keys: Sequence[OffloadKey], ctx: ReqContext) -> list[OffloadKey]:
        """Those of the leading keys that can be served which CPU memory has not got, not even on their way."""
        leading = keys[: self.lookup_prefix(keys, ctx)]
        return [key for key in leading if self.primary.lookup(key, ctx) is LookupResult.MISS]

    def set_serving(self, *, loading: Collection[str], storing: Collection[str]) -> None:
        """From now on only these tiers are loaded from, and only those are stored to."""
        self._presence.serving[:] = [each.facts for each in self._rules.values() if each.name in loading]
        self._cascades.set_serving(storing)

    def touch(self, keys: Sequence[OffloadKey], ctx: ReqContext) -> None:
        """Count a use in CPU memory."""
        self.primary.touch(keys, ctx)

    def on_new_request(self, ctx: ReqContext) -> None:
        """Begin a request."""
        self.primary.on_new_request(ctx)

    def on_request_finished(self, ctx: ReqContext) -> None:
        """End a request."""
        self.primary.on_request_finished(ctx)

    def grow(self, ready_slots: Sequence[int], *, ended: bool = False) -> None:
        """Use so many slots of each pool of CPU memory."""
        self.primary.grow(ready_slots, ended=ended)

    def take_events(self) -> list[OffloadingEvent]:
        """The changes in every tier since the last call, tier by tier."""
        events = self.primary.take_events()
        for each in self._rules.values():
            events += each.facts.take_events()
        return events

    def resident_keys(self) -> Iterator[ResidentPart]:
        """The readable keys of every tier that can say, part by part, whether or not it is in service."""
        yield from self.primary.resident_keys()
        for facts in (each.facts for each in self._rules.values()):
            for keys in facts.resident_keys() or ():
                yield ResidentPart(facts.medium, facts.name, keys)

    def reset_cache(self) -> int:
        """Drop every key of CPU memory; the tiers below are reset by the chain."""
        self._storing.clear()
        self._cascades.forget()
        return self.primary.reset_cache()

    def statistics(self) -> ManagerStatistics:
        """Those of CPU memory."""
        return self.primary.statistics()

    def check_integrity(self) -> None:
        """Check the slots of CPU memory, and what the tiers can say of theirs (I7).

        Raises:
            InternalError: it does not hold.
        """
        self.primary.check_integrity()
        for each in self._rules.values():
            each.facts.check_integrity()

    def __repr__(self) -> str:
        return (
            f"TieringOffloadingManager({self._presence!r}, {self.promoting_slots} slots promoting, "
            f"{self.cascading_slots} cascading, {self.primary!r})"
        )

    def _room_for_promotion(self, group_idx: int) -> int:
        """How many slots a promotion may take, so that running stores still find some (fault 21)."""
        left = self._promoting.left(group_idx)
        if left < 1:
            return 0
        slots = self.primary.slots_for(group_idx)
        return min(left, slots.free + slots.evictable - self._head_room[group_idx])
