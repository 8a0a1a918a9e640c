"""Spans of cascades and promotions, and whose a cascade is: that of the store which brought its keys, however late.

Knows keys and spans; used only where somebody traces.
"""

from collections.abc import Sequence
from itertools import islice

from aiokvoffload import tracing
from aiokvoffload.base import OffloadKey
from aiokvoffload.tiering.actions import Cascade, Promotion
from aiokvoffload.tiering.chain.calls import CallEnd
from aiokvoffload.tracing import Span

MAX_KEYS = 16_384
"""Keys that never go down would be kept for ever; beyond this, the oldest have no cause any more (I11)."""


class Causes:
    """For keys that were stored lately and may still go down, the span of their store."""

    __slots__ = ("_span_by_key",)

    def __init__(self) -> None:
        self._span_by_key: dict[OffloadKey, Span] = {}

    def note(self, keys: Sequence[OffloadKey], span: Span) -> None:
        """These keys were stored under `span`."""
        self._span_by_key.update(dict.fromkeys(keys, span))
        for key in list(islice(self._span_by_key, max(0, len(self) - MAX_KEYS))):
            del self._span_by_key[key]

    def of(self, keys: Sequence[OffloadKey]) -> Span | None:
        """The span that the first of them was stored under, if it is known; it stays so, as there may be more tiers."""
        return self._span_by_key.get(keys[0])

    def __len__(self) -> int:
        return len(self._span_by_key)

    def __repr__(self) -> str:
        return f"Causes({len(self)} keys)"


def begin_span(cause: Span | None, name: str, action: Cascade | Promotion) -> Span | None:
    """Begin the span of what is to be done, under that of whoever caused it; `None` where nobody traces."""
    if tracing.TRACER is None:
        return None
    return tracing.begin_under(cause, name, {"tier": action.tier, "keys": len(action.keys)})


def error_of(end: CallEnd) -> str:
    """What a span says of a call that did not return."""
    return "" if end is CallEnd.RETURNED else f"the call was {end.value}"
