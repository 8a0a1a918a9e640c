"""What is told about a tier's contents."""

import enum
from typing import NamedTuple

from aiokvoffload.base.keys import OffloadKey


class EventKind(enum.Enum):
    """What happened to the keys of an `OffloadingEvent`."""

    STORED = "stored"
    REMOVED = "removed"
    CLEARED = "cleared"
    """Everything the tier held is gone; carries no keys."""


class RemovalReason(enum.Enum):
    """Why keys were removed."""

    EVICTED = "evicted"
    FAILED = "failed"
    """A load found that they cannot be read."""
    RESET = "reset"


class OffloadingEvent(NamedTuple):
    """One change of what a tier holds, published after it is true (I9).

    Attributes:
        kind: stored, removed or cleared.
        keys: the keys concerned, of one group, in chain order; empty for `CLEARED`.
        medium: kind of storage, `"CPU"` for the primary tier.
        tier: name of the tier.
        reason: why, for removals and clears.
    """

    kind: EventKind
    keys: tuple[OffloadKey, ...]
    medium: str
    tier: str
    reason: RemovalReason | None = None
