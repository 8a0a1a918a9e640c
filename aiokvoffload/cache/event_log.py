"""Changes of one tier, kept until somebody takes them."""

from collections.abc import Callable, Collection

from aiokvoffload.base import EventKind, OffloadingEvent, OffloadKey, RemovalReason
from aiokvoffload.cache.chains import split_by_group
from aiokvoffload.cache.named import make_named

_CLEARED = EventKind.CLEARED  # named here, since looking up a member of an enumeration takes as long as a call


class EventLog:
    """The events since they were last taken, in the order in which they became true.

    Once there are more than may be kept, what remains is one event which says that the contents of the tier are not
    known any more (`RemovalReason.LOST`): a hole that nobody is told of would leave its mark for ever (I9, I11).

    Args:
        medium: kind of storage of the tier.
        tier: its name.
        num_groups: number of KV-cache groups; an event is about keys of one.
        max_events: most events kept.

    Attributes:
        dropped_count: events that were not kept; to be read only.
        is_lost: whether there were too many since they were last taken; to be read only.
    """

    __slots__ = ("_events", "_max_events", "_medium", "_num_groups", "_on_first", "_tier", "dropped_count", "is_lost")

    def __init__(self, medium: str, tier: str, *, num_groups: int, max_events: int) -> None:
        self._num_groups = num_groups
        self._medium = medium
        self._tier = tier
        self._max_events = max_events
        self._events: list[OffloadingEvent] = []
        self._on_first: Callable[[], None] | None = None
        self.dropped_count = 0
        self.is_lost = False

    def on_first(self, callback: Callable[[], None]) -> None:
        """Call `callback()` at every first event after they were taken."""
        self._on_first = callback

    def add(self, kind: EventKind, keys: Collection[OffloadKey], reason: RemovalReason | None = None) -> None:
        """Note what became of `keys`; nothing happened where there are none, but for `EventKind.CLEARED`.

        Args:
            kind: what happened.
            keys: in chain order; none, of what was cleared.
            reason: why they are gone.
        """
        if not keys and kind is not _CLEARED:
            return
        was_empty = not self._events
        for part in (keys,) if self._num_groups == 1 or not keys else _by_group(keys):
            if self.is_lost:
                self.dropped_count += 1
            elif len(self._events) < self._max_events:
                self._events.append(make_named(OffloadingEvent, (kind, tuple(part), self._medium, self._tier, reason)))
            else:
                self._lose()
        if was_empty and self._on_first is not None:
            self._on_first()

    def take(self) -> list[OffloadingEvent]:
        """The events, which are then forgotten here."""
        events, self._events, self.is_lost = self._events, [], False
        return events

    def __len__(self) -> int:
        return len(self._events)

    def __repr__(self) -> str:
        return f"EventLog({self._tier}, {len(self)} events, {self.dropped_count} dropped)"

    def _lose(self) -> None:
        self.dropped_count += len(self._events) + 1
        self.is_lost = True
        self._events = [OffloadingEvent(_CLEARED, (), self._medium, self._tier, RemovalReason.LOST)]


def _by_group(keys: Collection[OffloadKey]) -> list[list[OffloadKey]]:
    return [group_keys for _, group_keys in sorted(split_by_group(keys).items())]
