"""What one request has used, so that one request counts as one use of a key however often it comes back."""

from collections.abc import Sequence

from aiokvoffload.base import OffloadKey


class RequestUses:
    """The keys that one request has used and offered.

    Attributes:
        used: keys whose use was counted.
    """

    __slots__ = ("_last_batch", "_misplaced", "_offered", "used")

    def __init__(self) -> None:
        self._offered: set[OffloadKey] = set()
        self.used: set[OffloadKey] = set()
        # Keys that stand before the last batch in the request's chain, but were used before it: to put the chain in
        # order, tail first, only they need to be moved.
        self._misplaced: list[OffloadKey] = []
        self._last_batch: Sequence[OffloadKey] = ()

    @property
    def is_in_order(self) -> bool:
        """Whether nothing is left to be moved."""
        return not self._misplaced

    def take_misplaced(self, count: int) -> Sequence[OffloadKey]:
        """The last `count` keys that must become the most recent again, in chain order; those before come next."""
        piece = self._misplaced[-count:]
        del self._misplaced[-count:]
        return piece

    def count_use(self, keys: Sequence[OffloadKey]) -> Sequence[OffloadKey]:
        """Note a use; returns the keys that this request had not used before."""
        used = self.used
        count = len(used)
        new_keys = keys if used.isdisjoint(keys) else [key for key in keys if key not in used]
        used.update(new_keys)
        if len(used) < count + len(new_keys):
            new_keys = list(dict.fromkeys(new_keys))
        if new_keys:
            self._misplaced += self._last_batch
            self._last_batch = new_keys
        return new_keys

    def count_offer(self, keys: Sequence[OffloadKey]) -> Sequence[OffloadKey]:
        """Note an offer to store; returns the keys that this request had not offered before."""
        new_keys = [key for key in dict.fromkeys(keys) if key not in self._offered]
        self._offered.update(new_keys)
        return new_keys
