"""One call of a tier: what it moves, and who is told of its end. Performs nothing."""

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from aiokvoffload.base import ChunkViews, OffloadKey


class CallEnd(enum.Enum):
    """How a call ended for whoever waits for it."""

    RETURNED = "returned"
    LATE = "late"
    """Its deadline has passed; the tier may still touch the buffers."""
    REFUSED = "refused"
    """It never began."""


@dataclass(frozen=True, slots=True, eq=False)
class TierCall:
    """One call of a tier's `load` or `store`.

    Attributes:
        keys: what to move; of one group.
        group_idx: that group.
        max_keys: most keys of one call.
        make_views: gives the buffers of each key, when the call begins.
        on_settled: called once with how it ended and the outcomes, with `None` when there are none.
        on_returned: called once after that, when it does not any more. Never for a call that was lost.
    """

    keys: Sequence[OffloadKey]
    group_idx: int
    max_keys: int
    make_views: Callable[[], Sequence[ChunkViews]]
    on_settled: Callable[[CallEnd, Sequence[Any] | None], None]
    on_returned: Callable[[], None]

    def refuse(self) -> None:
        """It never began."""
        self.on_settled(CallEnd.REFUSED, None)
        self.on_returned()

    def can_go_with(self, other: "TierCall", num_keys: int) -> bool:
        """Whether `other` can be part of a call that has `num_keys` already and begins with this one."""
        return self.group_idx == other.group_idx and num_keys + len(other.keys) <= self.max_keys


def merge(calls: Sequence[TierCall]) -> TierCall:
    """One call that does what they do, and tells each of them its part of the outcomes."""
    if len(calls) == 1:
        return calls[0]
    merged = _Merged(calls)
    keys = [key for call in calls for key in call.keys]
    return TierCall(keys, calls[0].group_idx, len(keys), merged.make_views, merged.settle, merged.end)


class _Merged:
    __slots__ = ("_calls",)

    def __init__(self, calls: Sequence[TierCall]) -> None:
        self._calls = calls

    def make_views(self) -> Sequence[ChunkViews]:
        return [view for call in self._calls for view in call.make_views()]

    def settle(self, end: CallEnd, outcomes: Sequence[Any] | None) -> None:
        start = 0
        for call in self._calls:
            stop = start + len(call.keys)
            call.on_settled(end, None if outcomes is None else outcomes[start:stop])
            start = stop

    def end(self) -> None:
        for call in self._calls:
            call.on_returned()
