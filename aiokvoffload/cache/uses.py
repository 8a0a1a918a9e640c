"""What one request has used, so that one request counts as one use of a key however often it comes back."""

from collections.abc import Sequence

from aiokvoffload.base import OffloadKey


class RequestUses:
    """The keys that one request has used and offered, in the order in which it first did.

    Attributes:
        used: keys whose use was counted.
        batches: number of calls that brought new ones.
    """

    __slots__ = ("_offered", "batches", "used")

    def __init__(self) -> None:
        self._offered: dict[OffloadKey, None] = {}
        self.used: dict[OffloadKey, None] = {}
        self.batches = 0

    def count_use(self, keys: Sequence[OffloadKey]) -> Sequence[OffloadKey]:
        """Note a use; returns the keys that this request had not used before."""
        new_keys = _note(self.used, keys)
        self.batches += bool(new_keys)
        return new_keys

    def count_offer(self, keys: Sequence[OffloadKey]) -> Sequence[OffloadKey]:
        """Note an offer to store; returns the keys that this request had not offered before."""
        return _note(self._offered, keys)


def _note(seen: dict[OffloadKey, None], keys: Sequence[OffloadKey]) -> Sequence[OffloadKey]:
    if not seen:
        seen.update(dict.fromkeys(keys))
        return keys if len(seen) == len(keys) else list(seen)
    new_keys = [key for key in dict.fromkeys(keys) if key not in seen]
    seen.update(dict.fromkeys(new_keys))
    return new_keys
