"""What one request has used, so that one request counts as one use of a key however often it comes back."""

from collections.abc import Sequence

from aiokvoffload.base import OffloadKey


class RequestUses:
    """The keys that one request has used and offered.

    Attributes:
        used: keys whose use was counted.
    """

    __slots__ = ("_chain", "_last_batch_size", "_offered", "used")

    def __init__(self) -> None:
        self._offered: set[OffloadKey] = set()
        self.used: set[OffloadKey] = set()
        self._chain: list[OffloadKey] = []
        self._last_batch_size = 0

    @property
    def earlier_batches(self) -> Sequence[OffloadKey]:
        """All used keys but those of the last call that brought some, in the order of their first use.

        They stand before the last batch in the request's chain, but were used before it: to put its chain in order,
        tail first, only they need to be moved.
        """
        return self._chain[: -self._last_batch_size] if self._last_batch_size else ()

    def count_use(self, keys: Sequence[OffloadKey]) -> Sequence[OffloadKey]:
        """Note a use; returns the keys that this request had not used before."""
        used = self.used
        count = len(used)
        new_keys = keys if used.isdisjoint(keys) else [key for key in keys if key not in used]
        used.update(new_keys)
        if len(used) < count + len(new_keys):
            new_keys = list(dict.fromkeys(new_keys))
        if new_keys:
            self._chain += new_keys
            self._last_batch_size = len(new_keys)
        return new_keys

    def count_offer(self, keys: Sequence[OffloadKey]) -> Sequence[OffloadKey]:
        """Note an offer to store; returns the keys that this request had not offered before."""
        new_keys = [key for key in dict.fromkeys(keys) if key not in self._offered]
        self._offered.update(new_keys)
        return new_keys
