"""What a subscriber knows of the tiers from what it was told: the state that a router keeps."""

from collections.abc import Collection

from aiokvoffload.base import EventKind, OffloadingEvent, OffloadKey, RemovalReason
from aiokvoffload.events.records import EventRecord, GapRecord, Snapshot


class ResidentKeys:
    """The keys of each tier, by snapshots and records.

    Attributes:
        sequence: number of the record up to which it is true; -1 before anything was taken in.
    """

    __slots__ = ("_has_begun", "_keys", "_snapshot_at", "_unsure", "sequence")

    def __init__(self) -> None:
        self._keys: dict[str, set[OffloadKey]] = {}
        self._unsure: set[str] = set()
        self._has_begun = False
        self.sequence = self._snapshot_at = -1

    @property
    def is_exact(self) -> bool:
        """Whether it is known what every tier holds: from a snapshot or a restart on, until something was missed."""
        return self._has_begun and not self._unsure

    @property
    def tiers(self) -> Collection[str]:
        """Names of the tiers that were heard of."""
        return self._keys.keys()

    def keys(self, tier: str) -> Collection[OffloadKey]:
        """What a tier holds, as far as is known; not to be changed."""
        return self._keys.get(tier, set())

    def load(self, snapshot: Snapshot) -> None:
        """Begin anew from a snapshot."""
        self._keys = {tier.tier: set().union(*tier.parts) for tier in snapshot.tiers}
        self.sequence = self._snapshot_at = snapshot.sequence
        self._has_begun, self._unsure = True, set()

    def apply(self, record: EventRecord | GapRecord) -> None:
        """Take in what was told next; what is older than the snapshot changes nothing.

        Records of one number, as a message with several events has them, belong together.
        """
        if isinstance(record, GapRecord):
            if record.last > self.sequence:
                self.sequence = record.last
                self._unsure.update(self._keys)
            return
        if record.sequence <= self._snapshot_at or record.sequence < self.sequence:
            return
        self.sequence = record.sequence
        self.take(record.event)

    def take(self, event: OffloadingEvent) -> None:
        """Take in an event, whatever its number."""
        held = self._keys.setdefault(event.tier, set())
        match event.kind:
            case EventKind.STORED:
                held.update(event.keys)
            case EventKind.REMOVED:
                held.difference_update(event.keys)
            case EventKind.CLEARED:
                held.clear()
                self._unsure.discard(event.tier)
                self._has_begun |= event.reason is RemovalReason.RESTART

    def __repr__(self) -> str:
        counts = ", ".join(f"{tier} {len(keys)}" for tier, keys in self._keys.items())
        return f"ResidentKeys(at {self.sequence}{'' if self.is_exact else ', not exact'}: {counts})"
