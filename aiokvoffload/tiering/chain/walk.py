"""One chain of keys on its way up, batch by batch. Knows how far it is; decides nothing and moves nothing."""

from collections.abc import Callable, Collection, Sequence

from aiokvoffload.base import OffloadKey, ReqContext


class PromotionWalk:
    """Promotes a chain head first, never beyond its first miss or failure.

    Batches are promoted side by side, a few at a time, so that the first can be used while later ones are still read.

    Args:
        keys: of one group, in chain order.
        ctx: who wants them.
        excluded: names of tiers that are not to be asked.
        on_change: called when a batch has ended, and when the walk has; the keys themselves are to be looked up.

    Attributes:
        keys: as given.
        ctx: as given.
        excluded: as given.
        position: of the first key that is not promoted and not on its way.
        in_flight: batches on their way.
        ended: whether no further batch will begin.
        unused: keys that were promoted for this walk and not used yet: they must not leave for later ones.
    """

    __slots__ = ("_on_change", "ctx", "ended", "excluded", "in_flight", "keys", "position", "unused")

    def __init__(
        self,
        keys: Sequence[OffloadKey],
        ctx: ReqContext,
        *,
        excluded: Collection[str] = (),
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self.keys, self.ctx, self.excluded = keys, ctx, excluded
        self._on_change = on_change
        self.position = self.in_flight = 0
        self.ended = False
        self.unused: dict[OffloadKey, None] = {}

    @property
    def rest(self) -> Sequence[OffloadKey]:
        """What is not promoted and not on its way."""
        return self.keys[self.position :] if self.position else self.keys

    def begin(self, keys: Sequence[OffloadKey]) -> None:
        """The next keys are on their way."""
        self.position += len(keys)
        self.in_flight += 1
        self.unused.update(dict.fromkeys(keys))

    def use(self, keys: Sequence[OffloadKey]) -> None:
        """Whoever wants the keys has pinned these: they may leave when the pins end."""
        for key in keys:
            self.unused.pop(key, None)

    def batch_ended(self, failed_keys: Collection[OffloadKey]) -> None:
        """A batch is there, but for the failed keys, and with such the chain ends."""
        self.in_flight -= 1
        if failed_keys:
            self.ended = True
        self._on_change()

    def end(self) -> None:
        """No further batch begins; those on their way go on."""
        if not self.ended:
            self.ended = True
            self._on_change()

    def __repr__(self) -> str:
        state = "ended" if self.ended else "walking"
        return f"<PromotionWalk of {self.ctx.req_id!r} {state}, {self.position} of {len(self.keys)} keys>"
