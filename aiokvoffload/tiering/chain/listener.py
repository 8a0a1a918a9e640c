"""Whom the chain tells what becomes of keys: the doors, which it does not know."""

from typing import Protocol

from aiokvoffload.base import OffloadKey
from aiokvoffload.tiering.actions import Promotion


class ChainListener(Protocol):
    """Who is told what becomes of keys."""

    def promotion_began(self, promotion: Promotion) -> None:
        """Its keys are on their way into CPU memory."""
        ...

    def promotion_ended(self, promotion: Promotion, failed_keys: frozenset[OffloadKey]) -> None:
        """All its other keys are readable."""
        ...

    def tiers_changed(self) -> None:
        """There may be events to take."""
        ...
