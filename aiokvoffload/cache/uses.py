"""What one request has used, so that one request counts as one use of a key however often it comes back."""

from collections.abc import Sequence

from aiokvoffload.base import OffloadKey


class RequestUses:
    """The keys that one request has used and offered.

    Args:
        chain_number: the number under which a policy knows the request's chain; nobody else's.

    Attributes:
        chain_number: as given.
        used: keys whose use was counted; to be read only.
        found: by the last lookup: keys, of which the leading have these slots, how many removals there had been, and
            the first that no load has asked for. The cache sets it; keys and slots must not change.
    """

    __slots__ = ("_offered", "chain_number", "found", "used")

    def __init__(self, chain_number: int) -> None:
        # Dictionaries, since the garbage collector would go through sets of long chains, key by key.
        self._offered: dict[OffloadKey, None] = {}
        self.used: dict[OffloadKey, None] = {}
        self.found: tuple[Sequence[OffloadKey], Sequence[int], int, int] = ((), (), -1, 0)
        self.chain_number = chain_number

    def count_use(self, keys: Sequence[OffloadKey], once: dict[OffloadKey, None] | None = None) -> Sequence[OffloadKey]:
        """Note a use; returns the keys that this request had not used before.

        Args:
            keys: in chain order.
            once: each of them once, if the caller has made that; it is taken over.
        """
        used, once = self.used, dict.fromkeys(keys) if once is None else once
        if used and not used.keys().isdisjoint(once.keys()):
            once = {key: None for key in once if key not in used}
        new = keys if len(once) == len(keys) else list(once)
        if len(once) < len(used):
            used |= once
        else:
            once |= used
            self.used = once
        return new

    def slots_of(self, keys: Sequence[OffloadKey], removals: int) -> Sequence[int] | None:
        """The slots of all of these keys, which a load asks for as they were looked up, if they are still the same."""
        found, slots, removals_then, begin = self.found
        end = begin + len(keys)
        if removals != removals_then or end > len(slots) or found[begin:end] != keys:
            return None
        self.found = found, slots, removals, end
        return slots[begin:end]

    def count_offer(self, keys: Sequence[OffloadKey]) -> Sequence[OffloadKey]:
        """Note an offer to store; returns the keys that this request had not offered before."""
        new_keys = [key for key in dict.fromkeys(keys) if key not in self._offered]
        self._offered.update(dict.fromkeys(new_keys))
        return new_keys
