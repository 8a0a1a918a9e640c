"""What the manager of several tiers is told of each: whom to ask, and how much at a time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from aiokvoffload.base import OffloadingEvent, OffloadKey
from aiokvoffload.tiering.config import CascadeMode


class TierFacts(Protocol):
    """What is asked of a secondary tier without waiting."""

    @property
    def name(self) -> str:
        """Of the tier."""
        ...

    @property
    def medium(self) -> str:
        """Kind of storage."""
        ...

    def contains(self, keys: Sequence[OffloadKey], /) -> Sequence[bool]:
        """Whether each key can be loaded, as far as is known here."""
        ...

    def take_events(self) -> list[OffloadingEvent]:
        """The changes since the last call."""
        ...

    def resident_keys(self) -> Iterator[Sequence[OffloadKey]] | None:
        """The keys that can be loaded, part by part; `None` where that is not known here."""
        ...

    def check_integrity(self) -> None:
        """Check that what it counts adds up."""
        ...


@dataclass(frozen=True, slots=True)
class TierRules:
    """One tier.

    Attributes:
        facts: the tier, as far as it can be asked without waiting.
        cascade: when chunks go there.
        max_call_keys: for each KV-cache group the most keys of one call.
    """

    facts: TierFacts
    cascade: CascadeMode
    max_call_keys: Sequence[int]

    @property
    def name(self) -> str:
        """Of the tier."""
        return self.facts.name


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotShares:
    """Parts of each pool's slots; see `TieringOffloadingConfig`."""

    promotion: float = 0.5
    head_room: float = 0.1
    cascade: float = 0.25
