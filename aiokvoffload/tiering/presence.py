"""Which keys can be loaded from somewhere: CPU memory and the tiers in service, taken together. Decides nothing."""

from collections.abc import Iterable, Sequence
from itertools import takewhile

from aiokvoffload.base import LookupResult, OffloadingManager, OffloadKey, ReqContext
from aiokvoffload.tiering.rules import TierFacts

_RUN_KEYS = 256
"""A miss ends a lookup, so a long chain is not asked for as a whole."""
_NOBODY = ReqContext("")
"""A lookup changes nothing, whoever asks."""


class Presence:
    """The keys of all tiers, as one set that is looked up in.

    Args:
        primary: the manager of CPU memory.
        tiers: the secondary ones, the one to be asked first in front.
    """

    def __init__(self, primary: OffloadingManager, tiers: Sequence[TierFacts]) -> None:
        self._primary = primary
        self.serving = list(tiers)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, bytes) and bool(self.find_leading((OffloadKey(key),)))

    def find_leading(self, keys: Sequence[OffloadKey]) -> range:
        """The positions of the leading keys that are somewhere."""
        count = self._primary.lookup_prefix(keys, _NOBODY)
        while self.serving and count < len(keys):
            run = keys[count : count + _RUN_KEYS]
            count += (leading := self._count_anywhere(run))
            if leading < len(run):
                break
        return range(count)

    def _count_anywhere(self, keys: Sequence[OffloadKey]) -> int:
        below = zip(*(tier.contains(keys) for tier in self.serving), strict=True)
        return count_leading(any(answers) or not self._misses(key) for key, answers in zip(keys, below, strict=True))

    def is_below(self, key: OffloadKey) -> bool:
        """Whether some secondary tier has the key."""
        return any(tier.contains((key,))[0] for tier in self.serving)

    def count_absent_above(self, keys: Sequence[OffloadKey]) -> int:
        """Number of leading keys that CPU memory has not, not even on their way."""
        return count_leading(map(self._misses, keys))

    def _misses(self, key: OffloadKey) -> bool:
        return self._primary.lookup(key, _NOBODY) is LookupResult.MISS

    def __repr__(self) -> str:
        return f"Presence(cpu and {[tier.name for tier in self.serving]})"


def count_leading(answers: Iterable[bool]) -> int:
    """Number of leading answers that are yes; those behind the first no are not asked for."""
    return sum(1 for _ in takewhile(bool, answers))
