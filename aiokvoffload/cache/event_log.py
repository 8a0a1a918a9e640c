"""Changes of one tier, kept until somebody takes them."""

from collections import deque
from collections.abc import Collection

from aiokvoffload.base import EventKind, OffloadingEvent, OffloadKey, RemovalReason
from aiokvoffload.cache.chains import split_by_group


class EventLog:
    """The events since they were last taken, in the order in which they became true.

    Args:
        medium: kind of storage of the tier.
        tier: its name.
        num_groups: number of KV-cache groups; an event is about keys of one.
        max_events: most events kept; beyond it the oldest are dropped and counted (I11).
    """

    __slots__ = ("_events", "_medium", "_num_groups", "_tier", "dropped_count")

    def __init__(self, medium: str, tier: str, *, num_groups: int, max_events: int) -> None:
        self._num_groups = num_groups
        self._medium = medium
        self._tier = tier
        self._events: deque[OffloadingEvent] = deque(maxlen=max_events)
        self.dropped_count = 0

    def stored(self, keys: Collection[OffloadKey]) -> None:
        """These keys, in chain order, became readable."""
        if keys:
            self._append(EventKind.STORED, keys, None)

    def removed(self, keys: Collection[OffloadKey], reason: RemovalReason) -> None:
        """These keys, in chain order, are readable no more."""
        if keys:
            self._append(EventKind.REMOVED, keys, reason)

    def cleared(self) -> None:
        """Nothing is readable any more."""
        self._append(EventKind.CLEARED, (), RemovalReason.RESET)

    def take(self) -> list[OffloadingEvent]:
        """The events, which are then forgotten here."""
        events = list(self._events)
        self._events.clear()
        return events

    def __len__(self) -> int:
        return len(self._events)

    def __repr__(self) -> str:
        return f"EventLog({self._tier}, {len(self)} events, {self.dropped_count} dropped)"

    def _append(self, kind: EventKind, keys: Collection[OffloadKey], reason: RemovalReason | None) -> None:
        events = self._events
        for part in (keys,) if self._num_groups == 1 or not keys else _by_group(keys):
            self.dropped_count += len(events) == events.maxlen
            events.append(OffloadingEvent(kind, tuple(part), self._medium, self._tier, reason))


def _by_group(keys: Collection[OffloadKey]) -> list[list[OffloadKey]]:
    return [group_keys for _, group_keys in sorted(split_by_group(keys).items())]
