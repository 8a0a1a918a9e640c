"""What one load waits for: keys that are being written, and chains on their way up from lower tiers.

Knows where each key of the load came from; pins nothing and moves nothing.
"""

from collections.abc import Callable, Sequence
from itertools import groupby

from aiokvoffload.base import OffloadKey, ReqContext
from aiokvoffload.cpu.common import CPU_TIER
from aiokvoffload.service.backend import Backend
from aiokvoffload.service.running_store import RunningStore
from aiokvoffload.tiering.chain.walk import PromotionWalk
from aiokvoffload.tracing import Span


class Ascent:
    """The ways up that one load has begun or joined.

    Args:
        backend: what all requests share.
        ctx: the request.
        wake: called when what was waited for may be there.

    Attributes:
        span: that of the load, where somebody traces it.
    """

    __slots__ = ("_backend", "_base", "_began_at", "_ctx", "_failed_tiers", "_tier_by_key", "_wake", "_walk", "span")

    def __init__(self, backend: Backend, ctx: ReqContext, wake: Callable[[], None]) -> None:
        self._backend, self._ctx, self._wake = backend, ctx, wake
        self.span: Span | None = None
        self._walk: PromotionWalk | None = None
        self._base = 0  # where the walk began
        # A second walk from where the last one began is of use only without a tier that failed meanwhile, or where
        # others brought the first key up, and it left before it could be pinned.
        self._began_at: tuple[OffloadKey, int] | None = None
        self._failed_tiers: set[str] = set()
        self._tier_by_key: dict[OffloadKey, str] = {}

    def waits_for(self, keys: Sequence[OffloadKey], position: int) -> bool:
        """Whether the key there, which is not readable, will be; `wake` is called then, or when it will not."""
        running = self._backend.running_stores.get(keys[position])
        if running is not None:
            running.on_end(self._ended)
            return True
        depth = self._backend.depth
        if depth is None:
            return False
        if self._walk is not None and not self._walk.ended and position - self._base >= self._walk.position:
            self._walk.pass_to(position - self._base)
            return True
        begins_at = (keys[position], len(self._failed_tiers))
        if begins_at == self._began_at and not (self._walk is not None and self._walk.begun_by_others):
            return False
        self._began_at = begins_at
        self.end()
        excluded, wake = frozenset(self._failed_tiers), self._wake
        self._base = position
        self._walk = depth.promote(
            keys[position:], self._ctx, excluded=excluded, on_change=wake, holds=True, cause=self.span
        )
        return self._walk is not None

    def use(self, keys: Sequence[OffloadKey]) -> None:
        """These are pinned now."""
        if self._walk is not None:
            self._walk.use(keys)

    def end(self) -> None:
        """Nothing more is wanted; what is on its way goes on."""
        if self._walk is not None:
            self._tier_by_key.update(self._walk.tier_by_key)
            self._walk.give_up()

    def sources(self, served: Sequence[tuple[Sequence[OffloadKey], int]]) -> tuple[tuple[str, int], ...]:
        """For each run of served keys from one tier its name and their number.

        Args:
            served: chains, and how many keys of each were served, which are its first.
        """
        tier_of = self._tier_by_key
        if not tier_of:
            count = sum(limit for _, limit in served)
            return ((CPU_TIER, count),) if count else ()
        tiers = (tier_of.get(key, CPU_TIER) for keys, limit in served for key in keys[:limit])
        return tuple((tier, sum(1 for _ in run)) for tier, run in groupby(tiers))

    def _ended(self, running: RunningStore) -> None:
        if running.source:
            self._tier_by_key.update(dict.fromkeys(running.keys, running.source))
            if running.failed_keys:
                self._failed_tiers.add(running.source)
        self._wake()

    def __repr__(self) -> str:
        return f"<Ascent of {self._ctx.req_id!r}: {len(self._tier_by_key)} keys from below, {self._walk!r}>"
