"""Whose span a cascade belongs to: that of the store which brought its keys, though it goes down later.

Knows keys and spans. Used only where somebody traces.
"""

from collections.abc import Sequence
from itertools import islice

from aiokvoffload.base import OffloadKey
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
