"""What a subscriber knows of the tiers from what it was told: the state that a router keeps."""

from collections.abc import Collection

from aiokvoffload.base import EventKind, OffloadingEvent, OffloadKey
from aiokvoffload.events.records import EventRecord, GapRecord, Snapshot


class ResidentKeys:
    """The keys of each tier, by snapshots and records.

    Attributes:
        sequence: number of the record up to which it is true; -1 before anything was taken in.
        is_exact: whether nothing was missed since the last snapshot; before the first one, what was resident earlier
            is not known.
    """

    __slots__ = ("_keys", "_snapshot_at", "is_exact", "sequence")

    def __init__(self) -> None:
        self._keys: dict[str, set[OffloadKey]] = {}
        self.sequence = self._snapshot_at = -1
        self.is_exact = False

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
        self.is_exact = True

    def apply(self, record: EventRecord | GapRecord) -> None:
        """Take in what was told next; what is older than the snapshot changes nothing.

        Records of one number, as a message with several events has them, belong together.
        """
        if isinstance(record, GapRecord):
            if record.last > self.sequence:
                self.sequence, self.is_exact = record.last, False
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

    def __repr__(self) -> str:
        counts = ", ".join(f"{tier} {len(keys)}" for tier, keys in self._keys.items())
        return f"ResidentKeys(at {self.sequence}{'' if self.is_exact else ', not exact'}: {counts})"
