"""Least recently used: the chain whose last use is longest ago leaves first, its tail before its head."""

from collections.abc import Mapping, Sequence, Set

from aiokvoffload.base import Admission, CachePolicy, OffloadKey, Residents
from aiokvoffload.cache.named import make_named
from aiokvoffload.cache.policies.recency import SEEDED, RecencyList


class LRUPolicy(RecencyList, CachePolicy):
    """A single recency list, which evicts by last use; most of a policy's calls are that list's own.

    A store that does not fit is cut: its leading part is of use without its tail.

    Args:
        residents: the pool whose keys it orders.
    """

    __slots__ = ()

    # What a list does has other names in the contract of policies.
    place = RecencyList.add
    export = RecencyList.residents
    first_to_leave = RecencyList.oldest

    def __init__(self, residents: Residents) -> None:
        super().__init__(residents)

    def access(
        self, resident: Sequence[OffloadKey], slots: Sequence[int], absent: Sequence[OffloadKey], chain: int
    ) -> None:
        """Make the chain, with what is resident, the most recent; what is absent leaves no trace."""
        if slots:
            self.remove(slots)
            self.add(resident, slots, chain)
        elif absent and chain in self.chains:
            self.chains.move_to_end(chain)

    def admit(
        self,
        keys: Sequence[OffloadKey],
        room: int,
        protected: Set[OffloadKey],
        chain: int,
        *,
        may_decline: bool = True,
    ) -> Admission | None:
        """Admit the leading part that fits; the tails of the oldest chains leave."""
        missing = len(keys) - room
        if missing <= 0:
            return make_named(Admission, (len(keys), (), ()))
        victims, slots = self.evict(missing, protected, chain)
        accepted = room + len(slots)
        return make_named(Admission, (accepted, victims, slots)) if accepted else None

    def seed(self, residents: Mapping[int, OffloadKey]) -> None:
        """Take over an order, as that of one chain."""
        self.add(list(residents.values())[::-1], list(residents)[::-1], SEEDED)

    def __repr__(self) -> str:
        return f"LRUPolicy({super().__repr__()})"
