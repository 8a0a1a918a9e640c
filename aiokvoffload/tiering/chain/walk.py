"""One chain of keys on its way up, batch by batch. Knows how far it is; decides nothing and moves nothing."""

from collections.abc import Callable, Collection, Sequence

from aiokvoffload.base import OffloadKey, ReqContext
from aiokvoffload.tiering.actions import Hold, Promotion
from aiokvoffload.tracing import Span


class PromotionWalk:
    """Promotes a chain head first, never beyond its first miss or failure.

    Batches are promoted side by side, a few at a time, so that the first can be used while later ones are still read.

    Args:
        keys: of one group, in chain order.
        ctx: who wants them.
        excluded: names of tiers that are not to be asked.
        on_change: called when a batch has ended, when keys were skipped, and when the walk has ended; the keys
            themselves are to be looked up.
        cause: the span that promotions belong to, where somebody traces them.
        release: ends a hold. Without it nothing is held: who does not use the keys must not hold them.

    Attributes:
        keys: as given.
        ctx: as given.
        excluded: as given.
        cause: as given.
        begun_by_others: whether the first key was skipped; unlike what the walk brings up, it may be gone again.
        holds: whether promoted keys are held until they are used.
        position: of the first key that is not promoted and not on its way.
        in_flight: batches on their way.
        ended: whether no further batch will begin.
        tier_by_key: from which tier each key came that this walk has brought up.
    """

    __slots__ = (
        "_given_up",
        "_holds",
        "_on_change",
        "_release",
        "begun_by_others",
        "cause",
        "ctx",
        "ended",
        "excluded",
        "in_flight",
        "keys",
        "position",
        "tier_by_key",
    )

    def __init__(
        self,
        keys: Sequence[OffloadKey],
        ctx: ReqContext,
        *,
        excluded: Collection[str] = (),
        on_change: Callable[[], None] = lambda: None,
        release: Callable[[Hold], None] | None = None,
        cause: Span | None = None,
    ) -> None:
        self.keys, self.ctx, self.excluded = keys, ctx, excluded
        self._on_change, self._release, self.cause = on_change, release, cause
        self.position = self.in_flight = 0
        self.ended = self._given_up = self.begun_by_others = False
        self.tier_by_key: dict[OffloadKey, str] = {}
        self._holds: dict[OffloadKey, Hold] = {}

    @property
    def holds(self) -> bool:
        """Whether promoted keys are held until they are used."""
        return self._release is not None and not self._given_up

    @property
    def rest(self) -> Sequence[OffloadKey]:
        """What is not promoted and not on its way."""
        return self.keys[self.position :] if self.position else self.keys

    def begin(self, keys: Sequence[OffloadKey]) -> None:
        """The next keys are on their way."""
        self.position += len(keys)
        self.in_flight += 1

    def skip(self, count: int) -> None:
        """So many keys are there, or on their way for others, and nobody else says so to whoever wants them here."""
        if count:
            self.begun_by_others |= not self.position
            self.position += count
            self._on_change()

    def pass_to(self, position: int) -> None:
        """Whoever wants the keys has those before it, from others: brought up again, they would be held for nobody."""
        self.position = max(self.position, position)

    def hold(self, hold: Hold) -> None:
        """A batch is there, and held until its last key is used."""
        self._holds[hold.keys[-1]] = hold

    def use(self, keys: Sequence[OffloadKey]) -> None:
        """Whoever wants the keys has pinned these, and all before them."""
        if self._release is not None and self._holds:
            for key in self._holds.keys() & set(keys):
                self._release(self._holds.pop(key))

    def batch_ended(self, promotion: Promotion, failed_keys: Collection[OffloadKey]) -> None:
        """A batch is there, but for the failed keys, and with such the chain ends."""
        self.in_flight -= 1
        self.tier_by_key.update((key, promotion.tier) for key in promotion.keys if key not in failed_keys)
        if failed_keys:
            self.ended = True
        self._on_change()

    def end(self) -> None:
        """No further batch begins; those on their way go on. What is held can still be used."""
        if not self.ended:
            self.ended = True
            self._on_change()

    def give_up(self) -> None:
        """Nobody wants the keys any more."""
        self.ended = self._given_up = True
        holds, self._holds = self._holds, {}
        for hold in holds.values():
            if self._release is not None:
                self._release(hold)

    def __repr__(self) -> str:
        state = "ended" if self.ended else "walking"
        held = f"{len(self._holds)} batches held"
        return f"<PromotionWalk of {self.ctx.req_id!r} {state}, {self.position} of {len(self.keys)} keys, {held}>"
