"""What is told about a tier's contents."""

import enum
from collections.abc import Sequence
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
    RESTART = "restart"
    """A process has begun: what an earlier one told of the tier is void. What the tier kept is told as stored anew."""
    LOST = "lost"
    """More happened than could be kept until it was told. What is resident is told as stored anew where that is known,
    which a service sees to; who takes events from a manager asks it for `resident_keys`."""


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


class ResidentPart(NamedTuple):
    """Some of the keys that a tier holds, as it was at the moment when this was asked for.

    Attributes:
        medium: kind of storage.
        tier: name of the tier.
        keys: readable ones, in no particular order.
    """

    medium: str
    tier: str
    keys: Sequence[OffloadKey]
