"""The one order of all events, and the latest of them. Knows no subscribers and never waits."""

from collections.abc import Collection

from aiokvoffload.base import OffloadingEvent
from aiokvoffload.errors import InternalError
from aiokvoffload.events.records import ChunkMetadata, EventRecord

KEYS_PER_RECORD = 32
"""So many keys a record are kept on average: a history of records with 512 keys each would be sixteen times as big."""


class Timeline:
    """Numbers events, and keeps so many of the latest.

    Args:
        max_records: most records kept; `KEYS_PER_RECORD` times as many keys are.
        first_sequence: number of the first event.

    Attributes:
        origin: number of the first event; to be read only.
        first: number of the oldest record kept; to be read only.
        next: number of the next event; to be read only.
    """

    __slots__ = ("_forgotten", "_keys", "_max_keys", "_ring", "first", "next", "origin")

    def __init__(self, max_records: int, first_sequence: int = 0) -> None:
        self._ring: list[EventRecord | None] = [None] * max_records
        self._max_keys = max_records * KEYS_PER_RECORD
        self._keys = 0
        self._forgotten: dict[str, int] = {}
        self.origin = self.first = self.next = first_sequence

    @property
    def latest(self) -> int:
        """Number of the latest event; one below `origin` before the first."""
        return self.next - 1

    @property
    def max_records(self) -> int:
        """Most records kept."""
        return len(self._ring)

    def __len__(self) -> int:
        return self.next - self.first

    def append(self, event: OffloadingEvent, metadata: tuple[ChunkMetadata | None, ...] = ()) -> EventRecord:
        """Give the event its number and keep it."""
        sequence, ring = self.next, self._ring
        index = sequence % len(ring)
        keys = self._keys + len(event.keys)
        if (oldest := ring[index]) is not None:  # the place is taken by the first that is kept
            keys -= len(oldest.event.keys)
            self._forgotten[oldest.event.medium] = self.first
            self.first += 1
        record = ring[index] = EventRecord(sequence, event, metadata)
        self.next, self._keys = sequence + 1, keys
        if keys > self._max_keys:
            self._trim()
        return record

    def get(self, sequence: int) -> EventRecord:
        """A record that is kept.

        Raises:
            InternalError: it is not.
        """
        record = self._ring[sequence % len(self._ring)]
        if record is None or record.sequence != sequence:
            raise InternalError(f"record {sequence} is not kept: {self!r}")
        return record

    def has_lost(self, since: int, before: int, media: Collection[str] | None) -> bool:
        """Whether some record from `since` to `before`, exclusively, was about one of these media.

        Of records that are not kept any more the latest of each medium is known; those before `origin` are unknown.
        """
        if media is None or since < self.origin:
            return since < before
        if any(self._forgotten.get(medium, -1) >= since for medium in media):
            return True
        return any(self.get(number).event.medium in media for number in range(max(since, self.first), before))

    def _trim(self) -> None:
        while self._keys > self._max_keys and self.first < self.latest:
            self._forget_first()

    def _forget_first(self) -> None:
        index = self.first % len(self._ring)
        record = self._ring[index]
        if record is None:
            raise InternalError(f"the oldest record is not there: {self!r}")
        self._ring[index] = None
        self._keys -= len(record.event.keys)
        self._forgotten[record.event.medium] = self.first
        self.first += 1

    def __repr__(self) -> str:
        return f"Timeline({self.first} to {self.latest} of {self.origin} on, {self._keys} keys)"
