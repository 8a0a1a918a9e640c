"""`request.touch` of a long chain: its uses are counted run by run, so that the loop stays free (I10)."""

from collections.abc import Sequence

from aiokvoffload.base import OffloadingManager, OffloadKey, ReqContext
from aiokvoffload.service.pump import Progress


class TouchFlow:
    """Counts uses; moves nothing, so nobody waits for it.

    Args:
        manager: counts.
        ctx: the request.
        keys: the chain, head first.
        run_keys: keys of one step.
    """

    __slots__ = ("_ctx", "_keys", "_manager", "_position", "_run_keys")

    def __init__(
        self, manager: OffloadingManager, ctx: ReqContext, keys: Sequence[OffloadKey], *, run_keys: int
    ) -> None:
        self._manager, self._ctx, self._keys, self._run_keys = manager, ctx, keys, run_keys
        self._position = 0

    @property
    def walked(self) -> bool:
        """Whether all uses are counted."""
        return self._position >= len(self._keys)

    def step(self) -> Progress:
        """Count the next run."""
        run = self._keys[self._position : self._position + self._run_keys]
        self._position += len(run)
        self._manager.touch(run, self._ctx)
        return Progress.DONE if self.walked else Progress.AGAIN

    def fail(self, _error: Exception) -> None:
        """A step raised, which the pump has logged: the rest is not counted."""
        self._position = len(self._keys)

    def __repr__(self) -> str:
        return f"<TouchFlow of {self._ctx.req_id!r}: {self._position} of {len(self._keys)} keys>"
