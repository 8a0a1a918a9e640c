"""What the manager of several tiers wants done. Records; how it is done is not theirs."""

import enum
from collections.abc import Sequence
from typing import NamedTuple

from aiokvoffload.base import Ids, LoadStoreSpec, OffloadKey
from aiokvoffload.cpu.common import CPULoadStoreSpec
from aiokvoffload.errors import InternalError


class Cascade(NamedTuple):
    """Store these chunks in a secondary tier; their slots are pinned until `complete_cascade`.

    Attributes:
        tier: name of the tier.
        token: names the pins.
        keys: keys of one group, in chain order.
        slots: slot indices, one for each key.
        max_call_keys: most keys of one call, if this goes together with others.
    """

    tier: str
    token: int
    keys: Sequence[OffloadKey]
    slots: Ids
    max_call_keys: int


class Promotion(NamedTuple):
    """Load these chunks from a secondary tier into reserved slots, until `complete_promotion`.

    Attributes:
        tier: name of the tier.
        token: names the reservation.
        keys: keys of one group, in chain order.
        slots: slot indices, one for each key.
    """

    tier: str
    token: int
    keys: Sequence[OffloadKey]
    slots: Ids


class Hold(NamedTuple):
    """Chunks that were promoted for somebody who has not used them yet; pinned until `release`."""

    token: int
    keys: Sequence[OffloadKey]


def slots_of(spec: LoadStoreSpec) -> Ids:
    """The slots that the primary tier gave.

    Raises:
        InternalError: it is not CPU memory.
    """
    if not isinstance(spec, CPULoadStoreSpec):
        raise InternalError(f"the primary tier gave {spec!r}, which are no slots of CPU memory")
    return spec.chunk_ids


class DroppedKeys(NamedTuple):
    """Keys that were owed to a tier and never offered to it, by why.

    Attributes:
        held: they left CPU memory while too many slots were held already, or came too late.
        withdrawn: the tier went out of service, CPU memory was reset, or a failed load took the key away.
        at_close: a close had no time for them.
    """

    held: int = 0
    withdrawn: int = 0
    at_close: int = 0


class Verdict(enum.Enum):
    """What can be done now for a chain that is to come up."""

    PROMOTE = "promote"
    WAIT = "wait"
    """There is no room, but there may be later."""
    END = "end"
    """All is here, or the next key is nowhere."""


class PromotionPlan(NamedTuple):
    """One step on a chain.

    Attributes:
        verdict: what to do.
        skipped: leading keys that are in the primary tier already, or on their way there.
        promotion: what to promote; with `PROMOTE` only.
    """

    verdict: Verdict
    skipped: int
    promotion: Promotion | None = None
