"""Slots and order kept in step: one pool and the policy that decides who leaves it. Knows no requests and no tokens."""

from collections.abc import Collection, Mapping, Sequence
from itertools import takewhile
from typing import NamedTuple

from aiokvoffload.base import CachePolicy, LookupResult, OffloadKey
from aiokvoffload.cache.discard import DiscardPile
from aiokvoffload.cache.pool import ChunkPool, Held, PoolStatistics
from aiokvoffload.errors import InternalError


class Reservation(NamedTuple):
    """Slots for keys that are to be written, and who left for them."""

    held: Held
    victims: Sequence[OffloadKey]


class ChunkCache:
    """The resident chunks of one size in one tier.

    Args:
        num_slots: its capacity in chunks.
        policy: an empty policy of that capacity.
    """

    __slots__ = ("_pool", "policy")

    def __init__(self, num_slots: int, policy: CachePolicy) -> None:
        self._pool = ChunkPool(num_slots)
        self.policy = policy

    @property
    def slots(self) -> Mapping[OffloadKey, int]:
        """The slot of every key that is readable or being written."""
        return self._pool.slots

    @property
    def holds(self) -> Mapping[int, int]:
        """Number of transfers that touch a slot, by slot."""
        return self._pool.holds

    def lookup(self, key: OffloadKey) -> LookupResult:
        """Say what `key` is now."""
        if key not in self._pool.slots:
            return LookupResult.MISS
        return LookupResult.HIT_PENDING if key in self._pool.writing else LookupResult.HIT

    def leading_readable(self, keys: Sequence[OffloadKey]) -> Sequence[OffloadKey]:
        """The leading keys that can be read now."""
        leading = list(takewhile(self._pool.slots.__contains__, keys))
        writing = self._pool.writing
        if writing and not writing.isdisjoint(leading):
            return list(takewhile(lambda key: key not in writing, leading))
        return leading

    def pin(self, keys: Sequence[OffloadKey]) -> tuple[list[int], Held]:
        """Hold readable keys for reading; returns their slots and what to give to `complete_read`."""
        slots, held, newly_held = self._pool.pin(keys)
        self.policy.pin(newly_held)
        return slots, held

    def room_for(self, protected: Collection[OffloadKey]) -> int:
        """How many keys could be reserved now if `protected` must stay."""
        slots, holds = self._pool.slots, self._pool.holds
        spared = sum(slots[key] not in holds for key in set(protected) if key in slots)
        return self._pool.free_count + self._pool.evictable_count - spared

    def reserve(
        self, chain: Sequence[OffloadKey], layout: Sequence[OffloadKey], protected: Collection[OffloadKey]
    ) -> Reservation | None:
        """Reserve slots for a leading part of `chain`, evicting where there is no room.

        Args:
            chain: absent, distinct keys, the most useful first.
            layout: the same keys in the order in which slots are to be adjacent.
            protected: keys that must stay.

        Returns:
            The reservation, in the order of `layout`; `None` if there is room for none, and nothing has changed (I6).
        """
        admission = self.policy.admit(chain, self._pool.free_count, protected)
        if admission is None:
            return None
        keys = layout
        if admission.accepted < len(chain):
            accepted = set(chain[: admission.accepted])
            keys = [key for key in layout if key in accepted]
        held = self._pool.reserve(keys, admission.victims)
        self.policy.pin(keys)
        return Reservation(held, admission.victims)

    def complete_read(self, held: Held, failed_keys: Collection[OffloadKey]) -> list[OffloadKey]:
        """End a read; keys that could not be read are dropped, unless they are others' by now. Returns the dropped."""
        slots = self._pool.slots
        failed = [key for slot, key in held.items() if key in failed_keys and slots.get(key) == slot]
        self._drop(failed)
        self.release(held)
        return failed

    def complete_write(self, held: Held, failed_keys: Collection[OffloadKey]) -> Sequence[OffloadKey]:
        """End a write; failed keys leave no trace, the others become readable. Returns the latter."""
        written: Sequence[OffloadKey] = list(held.values())
        if failed_keys:
            self._drop([key for key in written if key in failed_keys])
            written = [key for key in written if key not in failed_keys]
        self._pool.publish(written)
        self.release(held)
        return written

    def release(self, held: Held) -> None:
        """End a transfer and nothing else, as is right for one of an epoch that is over."""
        self.policy.unpin(self._pool.release(held))

    def clear(self, pile: DiscardPile) -> int:
        """Drop every key at once; what held them goes on the pile. Returns how many were readable."""
        readable_count = len(self._pool.slots) - len(self._pool.writing)
        for container in (self._pool.clear(), *self.policy.clear()):
            pile.add(container)
        return readable_count

    def statistics(self) -> PoolStatistics:
        """Slots by state."""
        return self._pool.statistics()

    def check_integrity(self) -> None:
        """Check the pool, and that the policy orders exactly the pool's keys (I7).

        Raises:
            InternalError: it does not hold.
        """
        self._pool.check_integrity()
        ordered = self.policy.export()
        if len(ordered) != len(self.policy) or sorted(ordered) != sorted(self._pool.slots):
            raise InternalError(f"the policy orders other keys than have slots: {self!r}")

    def __repr__(self) -> str:
        return f"ChunkCache({self._pool!r}, {self.policy!r})"

    def _drop(self, keys: Sequence[OffloadKey]) -> None:
        if keys:
            self._pool.drop(keys)
            self.policy.remove(keys)
