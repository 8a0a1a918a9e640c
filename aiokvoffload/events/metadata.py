"""What callers attach to keys, for as long as some tier holds them. Knows events, not where they go."""

from collections.abc import Collection, Mapping

from aiokvoffload.base import EventKind, OffloadingEvent, OffloadKey
from aiokvoffload.events.records import ChunkMetadata


class _Entry:
    """One key: what is attached to it, and which tiers hold it, each in which of its epochs."""

    __slots__ = ("holders", "metadata")

    def __init__(self, metadata: ChunkMetadata) -> None:
        self.metadata = metadata
        self.holders: dict[str, int] = {}


class MetadataBook:
    """Metadata by key, until the key's last removal from any tier.

    Args:
        max_keys: most keys that are known here; beyond it the one attached longest ago is forgotten (I11).

    Attributes:
        entries: what is known, by key; not to be used from outside but to see whether there is any.
    """

    __slots__ = ("_epochs", "_max_keys", "entries")

    def __init__(self, max_keys: int) -> None:
        self._max_keys = max_keys
        self.entries: dict[OffloadKey, _Entry] = {}
        # A tier that is cleared begins a new epoch: going through all its keys could take long (I10).
        self._epochs: dict[str, int] = {}

    def attach(self, metadata: Mapping[OffloadKey, ChunkMetadata]) -> None:
        """Attach metadata to keys; a key that has some keeps its tiers and gets the new."""
        entries = self.entries
        for key, attached in metadata.items():
            entry = entries.get(key)
            if entry is not None:
                entry.metadata = attached
                continue
            if len(entries) >= self._max_keys:
                del entries[next(iter(entries))]
            entries[key] = _Entry(attached)

    def forget_absent(self, keys: Collection[OffloadKey]) -> None:
        """Forget keys that no tier holds: a store of them came to nothing."""
        for key in keys:
            entry = self.entries.get(key)
            if entry is not None and not self._is_held(entry):
                del self.entries[key]

    def get(self, key: OffloadKey) -> ChunkMetadata | None:
        """What is attached to a key."""
        entry = self.entries.get(key)
        return None if entry is None else entry.metadata

    def apply(self, event: OffloadingEvent) -> tuple[ChunkMetadata | None, ...]:
        """Take note of an event; what is attached to each of its keys if they were stored, and to none otherwise."""
        if event.kind is EventKind.CLEARED:
            self._epochs[event.tier] = self._epochs.get(event.tier, 0) + 1
            return ()
        if self.entries.keys().isdisjoint(event.keys):
            return ()
        if event.kind is EventKind.REMOVED:
            self._remove(event)
            return ()
        epoch, found = self._epochs.get(event.tier, 0), []
        for key in event.keys:
            entry = self.entries.get(key)
            if entry is not None:
                entry.holders[event.tier] = epoch
            found.append(None if entry is None else entry.metadata)
        return tuple(found)

    def __len__(self) -> int:
        return len(self.entries)

    def __repr__(self) -> str:
        return f"MetadataBook({len(self)} of {self._max_keys} keys)"

    def _remove(self, event: OffloadingEvent) -> None:
        for key in event.keys:
            entry = self.entries.get(key)
            if entry is None:
                continue
            entry.holders.pop(event.tier, None)
            if not self._is_held(entry):
                del self.entries[key]

    def _is_held(self, entry: _Entry) -> bool:
        epochs = self._epochs
        return any(epochs.get(tier, 0) == epoch for tier, epoch in entry.holders.items())
