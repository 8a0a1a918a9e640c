"""Slots and order kept in step: one pool and the policy that decides who leaves it. Knows no requests and no tokens."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from typing import cast

from aiokvoffload.base import CachePolicy, LookupResult, OffloadKey, Residents
from aiokvoffload.cache.discard import DiscardPile
from aiokvoffload.cache.policies.runs import count_same
from aiokvoffload.cache.pool import ChunkPool, Held
from aiokvoffload.errors import InternalError

LONG, _SHORT = 64, 8
"""Keys of a chain, and of a run, from which on runs pay."""


class ChunkCache:
    """The resident chunks of one size in one tier.

    Args:
        num_slots: its capacity in chunks.
        make_policy: makes the policy that orders them.
        grows: whether slots come later, as the pool is told.

    Attributes:
        pool: the slots; to be read only.
    """

    __slots__ = ("_policy", "pool")

    def __init__(self, num_slots: int, make_policy: Callable[[Residents], CachePolicy], *, grows: bool = False) -> None:
        self.pool = ChunkPool(num_slots, grows=grows)
        self._policy = make_policy(self.pool)

    def lookup(self, key: OffloadKey) -> LookupResult:
        """Say what `key` is now."""
        slot = self.pool.index.get(key)
        if slot is None:
            return LookupResult.MISS
        return LookupResult.HIT_PENDING if slot in self.pool.writing else LookupResult.HIT

    def leading_slots(self, keys: Sequence[OffloadKey]) -> tuple[int, ...]:
        """The slots of the leading keys that have one: of a long chain, run by run as the policy remembers it.

        To compare a run takes a fifth of the time of looking up its keys, which lie all over the index.
        """
        index = self.pool.index
        if (
            len(keys) < LONG
            or len(index.find_leading(keys[:_SHORT])) < _SHORT  # as most often
            or list(map(type, keys)).count(bytes) < len(keys)  # what equals a key need not be one
        ):
            return index.find_leading(keys)
        slots: list[int] = []
        while (count := len(slots)) < len(keys) and (slot := index.get(keys[count])) is not None:
            run_keys, run_slots = self._policy.rest_of_run(slot)
            same = count_same(run_keys, tuple(keys[count + 1 : count + 1 + len(run_keys)]))
            slots += (slot, *run_slots[:same])
            if same < _SHORT:  # then runs do not pay for a while
                some = keys[len(slots) : len(slots) + LONG]
                found = index.find_leading(some)
                slots += found
                if len(found) < len(some):
                    break
        return tuple(slots)

    def absent(self, keys: Sequence[OffloadKey]) -> Sequence[OffloadKey]:
        """The keys that have no slot, in the order given."""
        return self.pool.index.absent(keys)

    def access(self, keys: Sequence[OffloadKey], chain_number: int) -> None:
        """Count a use of each of these distinct keys, as the continuation of a chain."""
        if not keys:
            return
        slots = self.pool.index.find(keys)
        if None not in slots:
            self._policy.access(keys, cast("list[int]", slots), (), chain_number)
            return
        first_absent = slots.index(None)
        if first_absent:
            self._policy.access(keys[:first_absent], cast("list[int]", slots[:first_absent]), (), chain_number)
        rest = list(zip(keys[first_absent:], slots[first_absent:], strict=True))
        resident = {key: slot for key, slot in rest if slot is not None}
        absent = [key for key, slot in rest if slot is None]
        self._policy.access(list(resident), list(resident.values()), absent, chain_number)

    def access_absent(self, keys: Sequence[OffloadKey], chain_number: int) -> None:
        """The same for keys of which none has a slot."""
        if keys:
            self._policy.access((), (), keys, chain_number)

    def room_for(self, count: int, protected: Set[OffloadKey], chain_number: int) -> int:
        """How many of `count` keys of a chain could be reserved now if `protected` must stay."""
        missing = max(0, count - self.pool.free.count)
        return count - missing + self._policy.count_victims(missing, protected, chain_number)

    def reserve_chain(
        self,
        chain: Sequence[OffloadKey],
        layout: Sequence[OffloadKey],
        protected: Set[OffloadKey],
        chain_number: int,
        *,
        may_decline: bool,
    ) -> tuple[Held, Sequence[OffloadKey]] | None:
        """Reserve slots for a leading part of `chain`, evicting where there is no room.

        Args:
            chain: absent, distinct keys, the most useful first.
            layout: the same keys in the order in which slots are to be adjacent.
            protected: keys that must stay; all that were given under this number are among them.
            chain_number: number of the request's chain, which they continue.
            may_decline: whether the policy may decline what would fit.

        Returns:
            Slots for those that were accepted, in the order of `layout`, and who left for them; `None` if there is room
            for none, and nothing has changed (I6).
        """
        admission = self._policy.admit(chain, self.pool.free.count, protected, chain_number, may_decline=may_decline)
        if admission is None:
            return None
        accepted, victims, slots = admission
        if accepted != len(chain):
            if not 0 < accepted < len(chain):
                raise InternalError(f"{self._policy!r} admitted {accepted} of {len(chain)} keys")
            is_chain = layout is chain
            chain = chain[:accepted]
            layout = chain if is_chain else list(filter(set(chain).__contains__, layout))
        held = self.pool.replace(layout, victims, slots)
        slots = held.slots
        if layout is not chain:
            slot_by_key = dict(zip(layout, slots, strict=True))
            slots = [slot_by_key[key] for key in chain]
        self._policy.place(chain, slots, chain_number)
        return held, victims

    def complete_read(self, held: Held, failed_keys: Collection[OffloadKey] = ()) -> list[OffloadKey]:
        """End a read; keys that could not be read are dropped, unless they have other slots by now.

        Returns:
            The dropped keys.
        """
        dropped = self._drop_unread(held, failed_keys) if failed_keys else []
        self.pool.unpin(held)
        self._policy.release(held.slots)
        return dropped

    def complete_write(self, held: Held, failed_keys: Collection[OffloadKey] = ()) -> Sequence[OffloadKey]:
        """End a write; failed keys leave no trace.

        Returns:
            The keys that became readable.
        """
        written = held.keys
        if failed_keys:
            pairs = zip(held.keys, held.slots, strict=True)
            self._drop({key: slot for key, slot in pairs if key in failed_keys})
            written = [key for key in written if key not in failed_keys]
        self.pool.end_write(held)
        self._policy.release(held.slots)
        return written

    def quarantine_write(self, held: Held) -> None:
        """Drop the keys of a write that goes on; its slots are quarantined until `abandon_write`."""
        self._drop(dict(zip(held.keys, held.slots, strict=True)))

    def abandon_read(self, held: Held) -> None:
        """End a read of an epoch that is over: its slots are quarantined, its keys mean nothing any more."""
        self.pool.unpin(held)

    def abandon_write(self, held: Held) -> None:
        """End a write of an epoch that is over, or one whose slots were quarantined."""
        self.pool.end_write(held)

    def first_to_leave(self, count: int) -> list[OffloadKey]:
        """The readable keys among the `count` that come first in the order of leaving; none leaves."""
        writing = self.pool.writing
        return [key for slot, key in self._policy.first_to_leave(count) if slot not in writing]

    def clear(self, pile: DiscardPile) -> int:
        """Drop every key at once; what held them goes on the pile. Returns how many were readable."""
        readable_count = len(self.pool.index) - len(self.pool.writing)
        for container in (*self.pool.clear(), *self._policy.clear()):
            pile.add(container)
        return readable_count

    def check_integrity(self, reads: Iterable[Held], writes: Iterable[Held]) -> None:
        """Check the pool, and that the policy orders exactly the pool's keys (I7).

        Raises:
            InternalError: it does not hold.
        """
        self.pool.check_integrity(reads, writes)
        ordered = {key: slot for slot, key in self._policy.export().items()}
        if len(ordered) != len(self._policy) or ordered != dict(self.pool.index.items()):
            raise InternalError(f"the policy orders other keys than have slots: {self!r}")

    def __repr__(self) -> str:
        return f"ChunkCache({self.pool!r}, {self._policy!r})"

    def _drop_unread(self, held: Held, failed_keys: Collection[OffloadKey]) -> list[OffloadKey]:
        find = self.pool.index.get
        pairs = zip(held.keys, held.slots, strict=True)
        failed = {key: slot for key, slot in pairs if key in failed_keys and find(key) == slot}
        self._drop(failed)
        return list(failed)

    def _drop(self, failed: Mapping[OffloadKey, int]) -> None:
        if failed:
            self.pool.drop(list(failed), list(failed.values()))
            self._policy.remove(list(failed.values()))
