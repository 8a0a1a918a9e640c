"""What lies below CPU memory, as requests see it: promotions that loads wait for, and stores that go further down."""

from collections.abc import Callable, Collection, Sequence

from aiokvoffload import tracing
from aiokvoffload.base import OffloadKey, ReqContext
from aiokvoffload.service.backend import Backend
from aiokvoffload.service.parts import TierParts
from aiokvoffload.service.running_store import RunningStore
from aiokvoffload.tiering.actions import Promotion
from aiokvoffload.tiering.chain import Chain, PromotionWalk, TierStatistics


class Depth:
    """Joins the chain of tiers to a service's backend.

    Args:
        backend: what all requests share.
        parts: the tiers and their manager.

    Attributes:
        chain: performs.
    """

    def __init__(self, backend: Backend, parts: TierParts) -> None:
        self._backend = backend
        self._manager = parts.manager
        self._promotions: dict[int, RunningStore] = {}
        self.chain = Chain(
            parts.manager,
            parts.tiers,
            workers=backend.workers,
            clock=parts.clock,
            room_timeout_s=parts.room_timeout_s,
            listener=self,
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
        """Begin to bring a chain up; `None` if its first key is in no tier that may be asked."""
        return self.chain.promote(keys, ctx, excluded=excluded, on_change=on_change, holds=holds, cause=cause)

    def prefetch(self, keys: Sequence[OffloadKey], ctx: ReqContext) -> int:
        """Begin to bring up what a lookup counts and CPU memory has not got; returns how many keys that are."""
        wanted = self._manager.not_here(keys, ctx)
        if not wanted or self.promote(wanted, ctx, cause=tracing.current()) is None:
            return 0
        return len(wanted)

    def cascade(self, stored_keys: Sequence[OffloadKey], cause: tracing.Span | None = None) -> None:
        """Keys were stored, under a span where somebody traces: begin what is to go down."""
        if cause is not None:
            self.chain.trace(stored_keys, cause)
        self.chain.cascade()

    def room_changed(self) -> None:
        """Slots of CPU memory may have become free."""
        self.chain.room_changed()

    @property
    def waiting_promotions(self) -> int:
        """Chains that wait for room in CPU memory."""
        return self.chain.walks_waiting

    @property
    def room_timeouts(self) -> int:
        """Chains that waited for it in vain."""
        return self.chain.room_timeouts

    def statistics(self) -> tuple[TierStatistics, ...]:
        """One record for each tier."""
        return self.chain.statistics()

    def promotion_began(self, promotion: Promotion) -> None:
        """Loads and stores of its keys wait for it from now on."""
        running = RunningStore(promotion.keys, promotion.tier)
        self._promotions[promotion.token] = running
        self._backend.running_stores.update(dict.fromkeys(promotion.keys, running))

    def promotion_ended(self, promotion: Promotion, failed_keys: frozenset[OffloadKey]) -> None:
        """Whoever waits looks again."""
        running = self._promotions.pop(promotion.token)
        self._backend.forget_running(running, promotion.keys)
        running.end(failed_keys)

    def tiers_changed(self) -> None:
        """Tell subscribers."""
        self._backend.publish()

    def __repr__(self) -> str:
        return f"<Depth {self.chain!r}, {len(self._promotions)} promotions>"
