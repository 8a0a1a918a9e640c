"""Slots and order kept in step: one pool and the policy that decides who leaves it. Knows no requests and no tokens."""

from collections.abc import Collection, Iterable, Sequence

from aiokvoffload.base import CachePolicy, LookupResult, OffloadKey
from aiokvoffload.cache.discard import DiscardPile
from aiokvoffload.cache.pool import ChunkPool, Held, PoolStatistics
from aiokvoffload.errors import InternalError

Reservation = tuple[Held, Sequence[OffloadKey]]
"""Slots for keys that are to be written, and who left for them."""


class ChunkCache:
    """The resident chunks of one size in one tier.

    Args:
        num_slots: its capacity in chunks.
        policy: an empty policy of that capacity.
        grows: whether slots come later, as the pool is told.

    Attributes:
        pool: the slots; to be read only.
        policy: the order; its `access` may be called, since it changes no slot.
    """

    __slots__ = ("policy", "pool")

    def __init__(self, num_slots: int, policy: CachePolicy, *, grows: bool = False) -> None:
        self.pool = ChunkPool(num_slots, grows=grows)
        self.policy = policy

    def lookup(self, key: OffloadKey) -> LookupResult:
        """Say what `key` is now."""
        slot = self.pool.slots.get(key)
        if slot is None:
            return LookupResult.MISS
        return LookupResult.HIT_PENDING if slot in self.pool.writing else LookupResult.HIT

    def pin_leading(self, keys: Sequence[OffloadKey]) -> tuple[list[int], Held]:
        """Hold the leading readable keys for reading; returns their slots and what to give to `complete_read`."""
        slots, held, newly_held = self.pool.pin_leading(keys)
        self.policy.pin(newly_held)
        return slots, held

    def room_for(self, count: int, protected: Collection[OffloadKey], chain_number: int) -> int:
        """How many of `count` keys of a chain could be reserved now if `protected` must stay."""
        missing = max(0, count - self.pool.free.count)
        return count - missing + self.policy.count_victims(missing, protected, chain_number)

    def reserve(
        self,
        chain: Sequence[OffloadKey],
        layout: Sequence[OffloadKey],
        protected: Collection[OffloadKey],
        chain_number: int,
    ) -> Reservation | None:
        """Reserve slots for a leading part of `chain`, evicting where there is no room.

        Args:
            chain: absent, distinct keys, the most useful first.
            layout: the same keys in the order in which slots are to be adjacent.
            protected: keys that must stay; all that were given under this number are among them.
            chain_number: number of the request's chain, which they continue.

        Returns:
            The reservation, in the order of `layout`; `None` if there is room for none, and nothing has changed (I6).
        """
        admission = self.policy.admit(chain, self.pool.free.count, protected, chain_number)
        if admission is None:
            return None
        accepted, victims = admission
        keys = layout
        if accepted < len(chain):
            leading = set(chain[:accepted])
            keys = [key for key in layout if key in leading]
        held = self.pool.reserve(keys, victims)
        self.policy.pin(keys)
        return held, victims

    def complete_read(self, held: Held, failed_keys: Collection[OffloadKey] = ()) -> list[OffloadKey]:
        """End a read; keys that could not be read are dropped, unless they have other slots by now.

        Returns:
            The dropped keys.
        """
        failed = []
        if failed_keys:
            slots = self.pool.slots
            failed = [key for slot, key in held.items() if key in failed_keys and slots.get(key) == slot]
            self._drop(failed)
        self.policy.unpin(self.pool.unpin(held))
        return failed

    def complete_write(self, held: Held, failed_keys: Collection[OffloadKey] = ()) -> Collection[OffloadKey]:
        """End a write; failed keys leave no trace.

        Returns:
            The keys that became readable.
        """
        written: Collection[OffloadKey] = held.values()
        if failed_keys:
            self._drop([key for key in written if key in failed_keys])
            written = [key for key in written if key not in failed_keys]
        self.pool.end_write(held)
        self.policy.unpin(written)
        return written

    def abandon_read(self, held: Held) -> None:
        """End a read of an epoch that is over: its slots are quarantined, its keys mean nothing any more."""
        self.pool.unpin(held)

    def abandon_write(self, held: Held) -> None:
        """End a write of an epoch that is over."""
        self.pool.end_write(held)

    def clear(self, pile: DiscardPile) -> int:
        """Drop every key at once; what held them goes on the pile. Returns how many were readable."""
        readable_count = len(self.pool.slots) - len(self.pool.writing)
        for container in (self.pool.clear(), *self.policy.clear()):
            pile.add(container)
        return readable_count

    def statistics(self) -> PoolStatistics:
        """Slots by state."""
        return self.pool.statistics()

    def check_integrity(self, reads: Iterable[Held], writes: Iterable[Held]) -> None:
        """Check the pool, and that the policy orders exactly the pool's keys (I7).

        Raises:
            InternalError: it does not hold.
        """
        self.pool.check_integrity(reads, writes)
        ordered = self.policy.export()
        if len(ordered) != len(self.policy) or sorted(ordered) != sorted(self.pool.slots):
            raise InternalError(f"the policy orders other keys than have slots: {self!r}")

    def __repr__(self) -> str:
        return f"ChunkCache({self.pool!r}, {self.policy!r})"

    def _drop(self, keys: Sequence[OffloadKey]) -> None:
        if keys:
            self.pool.drop(keys)
            self.policy.remove(keys)
