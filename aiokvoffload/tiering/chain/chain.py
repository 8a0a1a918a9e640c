"""Performs what the manager of several tiers decides: chunks down, chunks up, tiers out of service and back.

Knows tiers, workers and the manager through their contracts. Requests it does not know: whoever wants a chain up is
told of changes, and looks again.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import NamedTuple

from aiokvoffload import tracing
from aiokvoffload.base import ChunkViews, Ids, OffloadingWorker, OffloadKey, ReqContext, get_offload_group_idx
from aiokvoffload.base.tier import LoadOutcome, SecondaryTier, StoreOutcome
from aiokvoffload.clock import Clock
from aiokvoffload.tiering.actions import Cascade, Hold, Promotion, Verdict
from aiokvoffload.tiering.chain.calls import CallEnd, TierCall
from aiokvoffload.tiering.chain.closing import close_all, close_link
from aiokvoffload.tiering.chain.lane import TierLane
from aiokvoffload.tiering.chain.link import Link
from aiokvoffload.tiering.chain.listener import ChainListener
from aiokvoffload.tiering.chain.room import RoomQueue
from aiokvoffload.tiering.chain.spans import Causes, begin_span, error_of
from aiokvoffload.tiering.chain.statistics import TierStatistics
from aiokvoffload.tiering.chain.walk import PromotionWalk
from aiokvoffload.tiering.config import TierConfig
from aiokvoffload.tiering.manager import TieringOffloadingManager

_CALLS_AHEAD = 2
"""Batches that a walk has under way for each call that a tier runs at a time: it has the next one at hand."""


class _Begun(NamedTuple):
    """When a promotion began, and its span."""

    time_s: float
    span: tracing.Span | None


class Chain:
    """The way from CPU memory to the tiers below, and back.

    Args:
        manager: decides.
        tiers: each with its limits, the one to be asked first in front.
        workers: have the bytes, in rank order.
        clock: measures deadlines.
        room_timeout_s: how long a walk waits for room.
        listener: is told.
    """

    def __init__(
        self,
        manager: TieringOffloadingManager,
        tiers: Sequence[tuple[SecondaryTier, TierConfig]],
        *,
        workers: Sequence[OffloadingWorker],
        clock: Clock,
        room_timeout_s: float,
        listener: ChainListener,
    ) -> None:
        self._manager, self._workers, self._listener = manager, tuple(workers), listener
        self._links = {
            tier.name: Link(
                TierLane(tier, config, clock=clock, on_serving=self._serving_changed),
                max_calls_ahead=_CALLS_AHEAD * config.max_loads_in_flight,
            )
            for tier, config in tiers
        }
        self._clock = clock
        self._room = RoomQueue(clock, room_timeout_s)
        self._promotions: dict[int, Promotion] = {}
        self._causes = Causes()
        self._closing = self._is_cascading = self._will_serve = False

    @property
    def names(self) -> tuple[str, ...]:
        """Of the tiers."""
        return tuple(self._links)

    @property
    def unreturned(self) -> bool:
        """Whether a tier may still touch slots."""
        return any(not link.lane.idle for link in self._links.values())

    async def open(self) -> None:
        """Open every tier.

        Raises:
            TierError: one cannot be used; those that were open are closed again, also if that is cancelled.
        """
        opened: list[SecondaryTier] = []
        try:
            for link in self._links.values():
                link.lane.tier.on_events(self._listener.events_pending)
                await link.lane.tier.open()
                opened.append(link.lane.tier)
        except BaseException:
            await close_all(opened)
            raise

    def trace(self, keys: Sequence[OffloadKey], cause: tracing.Span) -> None:
        """Spans of cascades of these keys are under `cause`."""
        self._causes.note(keys, cause)

    def cascade(self) -> None:
        """Begin what the manager wants to go down."""
        if self._is_cascading:  # one that is refused makes room for the next at once
            return
        self._is_cascading = True
        try:
            while cascades := self._manager.take_cascades():
                for cascade in cascades:
                    self._links[cascade.tier].lane.store(self._call_of(cascade))
        finally:
            self._is_cascading = False
        self._owed_changed()

    def _owed_changed(self) -> None:
        for link in self._links.values():
            link.lane.look_again()

    def _call_of(self, cascade: Cascade) -> TierCall:
        span = begin_span(self._causes.of(cascade.keys), "cascade", cascade)
        return TierCall(
            cascade.keys,
            get_offload_group_idx(cascade.keys[0]),
            cascade.max_call_keys,
            partial(self._views, cascade.keys, cascade.slots),
            partial(self._cascade_settled, cascade, span),
            partial(self._cascade_returned, cascade),
        )

    def promote(
        self,
        keys: Sequence[OffloadKey],
        ctx: ReqContext,
        *,
        excluded: Collection[str] = (),
        on_change: Callable[[], None] = lambda: None,
        holds: bool = False,
        cause: tracing.Span | None = None,
    ) -> PromotionWalk | None:
        """Begin to bring a chain up; `None` if its first key is in no tier that may be asked.

        Args:
            keys: of one group, in chain order.
            ctx: who wants them.
            excluded: tiers that are not to be asked.
            on_change: called when the keys are to be looked up again, maybe before this returns.
            holds: whether what has come up stays until it is used; the caller then says so, and when it gives up.
            cause: spans of the promotions are under it.
        """
        if self._closing or not self._manager.can_promote(keys, excluded):
            return None
        release = self._release if holds else None
        walk = PromotionWalk(keys, ctx, excluded=excluded, on_change=on_change, release=release, cause=cause)
        self._go_on(walk)
        return walk

    def room_changed(self) -> None:
        """Slots may have become free or evictable."""
        if self._room and not self._will_serve:
            self._will_serve = True
            asyncio.get_running_loop().call_soon(self._serve_room)

    def _serve_room(self) -> None:
        """Let the next walk go on, and one more in another pass of the loop (I10)."""
        self._will_serve = False
        if self._room.serve_next(self._advance):
            self.room_changed()

    @property
    def walks_waiting(self) -> int:
        """Chains that wait for room in CPU memory to come up into."""
        return len(self._room)

    @property
    def room_timeouts(self) -> int:
        """Chains that waited for room in vain so far."""
        return self._room.timeouts

    async def reset(self, names: Collection[str]) -> dict[str, int | None]:
        """Reset tiers side by side; for each what was cleared, `None` where that must wait until the tier answers."""
        chosen = [name for name in self._links if name in names]
        resetting = [self._links[name].lane.reset() for name in chosen]
        self._void(names)
        for task in resetting:
            task.add_done_callback(lambda _: self._listener.tiers_changed())
        # Whoever asked may go; what was begun goes on to its end (I2).
        cleared = await asyncio.gather(*map(asyncio.shield, resetting))
        return dict(zip(chosen, cleared, strict=True))

    def _void(self, names: Collection[str]) -> None:
        """What is on its way from these tiers is of the old epoch."""
        for promotion in tuple(self._promotions.values()):
            if promotion.tier in names:
                self._manager.quarantine_promotion(promotion)

    def refuse_cascades(self) -> None:
        """CPU memory is reset: what waits to go down is not to be kept."""
        for link in self._links.values():
            link.lane.refuse_waiting(loads=False)

    async def aclose(self, timeout_s: float) -> list[str]:
        """End what is under way or owed, up to the time-out, and close every tier; returns what is left, for people."""
        self._closing = True
        await self._room.aclose()
        close = partial(close_link, manager=self._manager, clock=self._clock, timeout_s=timeout_s)
        left = await asyncio.gather(*map(close, self._links.values()))
        return [text for text in left if text]

    def statistics(self) -> tuple[TierStatistics, ...]:
        """One record for each tier."""
        count_dropped = self._manager.count_dropped
        return tuple(link.statistics(count_dropped(name)) for name, link in self._links.items())

    def _views(self, keys: Sequence[OffloadKey], slots: Ids) -> Sequence[ChunkViews]:
        group_idx, rows = get_offload_group_idx(keys[0]), slots.tolist()
        return list(zip(*(worker.slot_views(group_idx, rows) for worker in self._workers), strict=True))

    def _go_on(self, walk: PromotionWalk) -> None:
        """Take the walk's next steps, behind those that wait for room."""
        if self._closing:
            walk.end()
        elif not walk.ended and (self._room or not self._advance(walk)):
            self._room.wait(walk)

    def _advance(self, walk: PromotionWalk) -> bool:
        """Begin the next batch; whether the walk need not wait for room."""
        if walk.ended:
            return True
        plan = self._manager.plan_promotion(walk.rest, walk.ctx, excluded=walk.excluded, own_may_leave=walk.holds)
        walk.skip(plan.skipped)
        if plan.verdict is Verdict.WAIT:
            return False
        if plan.promotion is None:
            walk.end()
            return True
        self._begin(walk, plan.promotion)
        if walk.in_flight < self._links[plan.promotion.tier].max_calls_ahead:
            # In another pass of the loop (I10).
            asyncio.get_running_loop().call_soon(self._go_on, walk)
        return True

    def _begin(self, walk: PromotionWalk, promotion: Promotion) -> None:
        walk.begin(promotion.keys)
        span = begin_span(walk.cause, "promotion", promotion)
        self._promotions[promotion.token] = promotion
        self._listener.promotion_began(promotion)
        self._links[promotion.tier].lane.load(
            TierCall(
                promotion.keys,
                get_offload_group_idx(promotion.keys[0]),
                len(promotion.keys),
                partial(self._views, promotion.keys, promotion.slots),
                partial(self._promotion_settled, walk, promotion, _Begun(self._clock.now_s(), span)),
                partial(self._promotion_returned, promotion),
            )
        )

    def _promotion_settled(
        self,
        walk: PromotionWalk,
        promotion: Promotion,
        begun: _Begun,
        end: CallEnd,
        outcomes: Sequence[LoadOutcome] | None,
    ) -> None:
        keys, link = promotion.keys, self._links[promotion.tier]
        outcomes = [LoadOutcome.FAILED] * len(keys) if outcomes is None else outcomes
        link.count_loads(outcomes, self._clock.now_s() - begun.time_s)
        failed = frozenset(key for key, out in zip(keys, outcomes, strict=True) if out is not LoadOutcome.LOADED)
        if begun.span is not None:
            begun.span.end({"failed": len(failed)}, error=error_of(end))
        if end is CallEnd.LATE:
            self._manager.quarantine_promotion(promotion)
        elif not self._complete_promotion(promotion, failed):
            failed = frozenset(keys)
        elif walk.holds and (hold := self._manager.hold(keys)) is not None:
            walk.hold(hold)
        self._listener.tiers_changed()
        self._listener.promotion_ended(promotion, failed)
        walk.batch_ended(promotion, failed)
        self.room_changed()
        self._go_on(walk)

    def _promotion_returned(self, promotion: Promotion) -> None:
        """The tier touches its slots no more; nothing is left to do unless it was late."""
        if promotion.token in self._promotions:
            self._complete_promotion(promotion, frozenset())
            self.room_changed()

    def _release(self, hold: Hold) -> None:
        self._manager.release(hold)
        self.room_changed()

    def _complete_promotion(self, promotion: Promotion, failed: frozenset[OffloadKey]) -> bool:
        del self._promotions[promotion.token]
        return self._manager.complete_promotion(promotion, failed)

    def _cascade_settled(
        self, cascade: Cascade, span: tracing.Span | None, end: CallEnd, outcomes: Sequence[StoreOutcome] | None
    ) -> None:
        if span is not None:
            stored = 0 if outcomes is None else outcomes.count(StoreOutcome.STORED)
            span.end({"stored": stored}, error=error_of(end))
        link = self._links[cascade.tier]
        if end is CallEnd.REFUSED:
            link.count_refused(len(cascade.keys))
            return
        outcomes = [StoreOutcome.FAILED] * len(cascade.keys) if outcomes is None else outcomes
        pairs = zip(cascade.keys, outcomes, strict=True)
        link.count_stores(outcomes)
        declined = [key for key, outcome in pairs if outcome in (StoreOutcome.REFUSED, StoreOutcome.FAILED)]
        if declined:
            self._manager.decline_cascade(cascade, declined)

    def _cascade_returned(self, cascade: Cascade) -> None:
        self._manager.complete_cascade(cascade)
        self.cascade()
        self._listener.tiers_changed()
        self.room_changed()

    def _serving_changed(self) -> None:
        self._manager.set_serving(
            loading=[name for name, link in self._links.items() if link.lane.serving],
            storing=[name for name, link in self._links.items() if link.lane.storing.serving],
        )
        self._owed_changed()

    def __repr__(self) -> str:
        return f"<Chain to {', '.join(self._links)}: {len(self._promotions)} promotions, {self._room!r}>"
