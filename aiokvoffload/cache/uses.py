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
    """

    __slots__ = ("_found_keys", "_found_next", "_found_slots", "_offered", "_removals", "chain_number", "used")

    def __init__(self, chain_number: int) -> None:
        # Dictionaries, since the garbage collector would go through sets of long chains, key by key.
        self._offered: dict[OffloadKey, None] = {}
        self.used: dict[OffloadKey, None] = {}
        self._found_keys: Sequence[OffloadKey] = ()
        self._found_slots: Sequence[int] = ()
        self._found_next = 0
        self._removals = -1
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

    def looked_up(self, keys: Sequence[OffloadKey], slots: Sequence[int], removals: int) -> None:
        """Remember in which slots the leading of `keys` were found, and how many removals there had been.

        Both are kept as they are given, and must not change.
        """
        self._found_keys, self._found_slots, self._removals = keys, slots, removals
        self._found_next = 0

    def slots_of(self, keys: Sequence[OffloadKey], removals: int) -> Sequence[int] | None:
        """The slots of all of these keys, which a load asks for as they were looked up, if they are still the same."""
        begin, end = self._found_next, self._found_next + len(keys)
        if removals != self._removals or end > len(self._found_slots) or self._found_keys[begin:end] != keys:
            return None
        self._found_next = end
        return self._found_slots[begin:end]

    def count_offer(self, keys: Sequence[OffloadKey]) -> Sequence[OffloadKey]:
        """Note an offer to store; returns the keys that this request had not offered before."""
        new_keys = [key for key in dict.fromkeys(keys) if key not in self._offered]
        self._offered.update(dict.fromkeys(new_keys))
        return new_keys
