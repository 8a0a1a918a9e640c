"""What one request has used, so that one request counts as one use of a key however often it comes back."""

from collections.abc import Sequence

from aiokvoffload.base import OffloadKey


class RequestUses:
    """The keys that one request has used and offered.

    Args:
        chain_number: the number under which a policy knows the request's chain; nobody else's.

    Attributes:
        chain_number: as given.
        used: keys whose use was counted.
    """

    __slots__ = ("_offered", "chain_number", "used")

    def __init__(self, chain_number: int) -> None:
        self._offered: set[OffloadKey] = set()
        self.chain_number = chain_number
        self.used: set[OffloadKey] = set()

    def count_use(self, keys: Sequence[OffloadKey]) -> Sequence[OffloadKey]:
        """Note a use; returns the keys that this request had not used before."""
        used = self.used
        count = len(used)
        new_keys = keys if used.isdisjoint(keys) else [key for key in keys if key not in used]
        used.update(new_keys)
        if len(used) < count + len(new_keys):
            new_keys = list(dict.fromkeys(new_keys))
        return new_keys

    def count_offer(self, keys: Sequence[OffloadKey]) -> Sequence[OffloadKey]:
        """Note an offer to store; returns the keys that this request had not offered before."""
        new_keys = [key for key in dict.fromkeys(keys) if key not in self._offered]
        self._offered.update(new_keys)
        return new_keys
