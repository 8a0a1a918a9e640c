"""Slots and order of one pool on disk, where a slot outlives its key: until no row speaks of it any more.

A slot is *resident*, then *retiring* (its key is gone, its row's deletion is queued), *free* (that is committed),
*writing*, and *resident* again (a row for it is queued). A retiring slot is quarantined in the pool's terms, held by
the thread that writes the rows. So is, after a restart, one whose row has not been read yet.
"""

from collections.abc import Callable, Collection, Iterable, Sequence, Set
from typing import NamedTuple

import numpy as np

from aiokvoffload.base import CachePolicy, OffloadKey, Residents
from aiokvoffload.cache.chunk_cache import ChunkCache
from aiokvoffload.cache.pool import Held
from aiokvoffload.errors import InternalError
from aiokvoffload.tiering.disk.checksum import CHECKSUM_BYTES
from aiokvoffload.tiering.disk.rows import ChainRun

_CHECKSUM = np.dtype(f"V{CHECKSUM_BYTES}")
MAX_SPARE_SLOTS = 1024
"""With fewer of 64 KiB, stores under way and a commit or two would have them all, and stores would wait."""


def spare_slots(num_slots: int) -> int:
    """How many of a pool's slots are kept free, or on their way to it."""
    return max(1, min(MAX_SPARE_SLOTS, num_slots // 16))


class Reserved(NamedTuple):
    """Slots for the leading keys of a store, and the keys that left for them, with the slots that these had."""

    held: Held
    evicted: Sequence[OffloadKey]
    retiring: Held


class SlotCache(ChunkCache):
    """The chunks of one pool on disk.

    A store evicts at once, and is given slots that others gave up earlier; `spare` of them are kept for that.

    Args:
        num_slots: in all.
        make_policy: makes the policy that orders the chunks.

    Attributes:
        spare: slots that are kept free, or on their way to it.
    """

    __slots__ = ("_checksums", "_retiring", "spare")

    def __init__(self, num_slots: int, make_policy: Callable[[Residents], CachePolicy]) -> None:
        super().__init__(num_slots, make_policy)
        self.spare = spare_slots(num_slots)
        self._retiring: set[int] = set()
        self._checksums = np.zeros(num_slots, _CHECKSUM)

    @property
    def retiring_count(self) -> int:
        """Slots whose rows are still to be deleted."""
        return len(self._retiring)

    @property
    def unread_count(self) -> int:
        """Slots whose rows are still to be read."""
        return len(self.pool.held_back)

    def checksums(self, slots: Sequence[int]) -> list[bytes]:
        """Of what slots hold."""
        found: list[bytes] = self._checksums[list(slots)].tolist()
        return found

    def set_checksums(self, slots: Sequence[int], checksums: Sequence[bytes]) -> None:
        """Note the checksums of what slots hold."""
        self._checksums[list(slots)] = np.frombuffer(b"".join(checksums), _CHECKSUM)

    def reserve(self, chain: Sequence[OffloadKey], protected: Set[OffloadKey], chain_number: int) -> Reserved | None:
        """Reserve free slots for a leading part of `chain`, no more than there are, and evict as many keys as it takes.

        Args:
            chain: absent, distinct keys, head first.
            protected: keys that must stay.
            chain_number: which they continue.

        Returns:
            The reservation, or `None` if nothing can leave, and nothing has changed (I6).
        """
        room = max(0, self.pool.capacity - self.spare - len(self.pool.index) - self.unread_count)
        admission = self._policy.admit(chain[: self.pool.free.count], room, protected, chain_number)
        if admission is None:
            return None
        accepted, victims, victim_slots = admission
        retiring = self._retire(victims, victim_slots)
        held = self.pool.reserve(chain[:accepted])
        self._policy.place(held.keys, held.slots, chain_number)
        return Reserved(held, victims, retiring)

    def forget(self, held: Held, keys: Collection[OffloadKey]) -> Held:
        """Drop keys of a read that turned out to be of no use, unless they have other slots by now.

        Returns:
            Their keys and slots, which are retiring.
        """
        find = self.pool.index.get
        lost = {key: slot for key, slot in zip(held.keys, held.slots, strict=True) if key in keys and find(key) == slot}
        if lost:
            self._policy.remove(list(lost.values()))
        return self._retire(list(lost), list(lost.values()))

    def free(self, slots: Sequence[int]) -> None:
        """The rows of retiring slots are gone."""
        self._retiring.difference_update(slots)
        self.pool.unpin(Held(slots, ()))

    def hold_unread(self, slots: Sequence[int]) -> None:
        """These free slots have rows from an earlier run; before anything else happens to them."""
        self.pool.hold_back(slots)

    def adopt(self, run: ChainRun, chain_number: int) -> Sequence[OffloadKey]:
        """What rows of an earlier run say is readable, as the continuation of a chain, but for keys that have slots.

        Returns:
            The keys that became readable, head first.

        Raises:
            InternalError: the policy declines keys for which there are slots; none of them became readable.
        """
        if not self._is_sound(run):
            run = self._sound_part(run)
        if run.keys:
            self._order(run, chain_number)
            self.pool.adopt(run.keys, run.slots)
            self.set_checksums(run.slots, run.checksums)
        return run.keys

    def retire_unread(self, count: int) -> Sequence[int]:
        """So many unread slots, or what there are, are retiring now."""
        held = self.pool.claim(count)
        self._retiring.update(held.slots)
        return held.slots

    def check_integrity(self, reads: Iterable[Held], writes: Iterable[Held]) -> None:
        """Check as any cache is checked, with the holds of those who write and read rows.

        Raises:
            InternalError: it does not hold.
        """
        super().check_integrity([*reads, Held([*self._retiring], ())], writes)

    def __repr__(self) -> str:
        return f"SlotCache({self.pool!r}, {self.retiring_count} retiring, {self.unread_count} unread, {self._policy!r})"

    def _order(self, run: ChainRun, chain_number: int) -> None:
        """Put adopted keys into the policy's order; before they have slots, which nobody takes back if it fails."""
        keys, room = run.keys, len(run.keys)
        admission = self._policy.admit(keys, room, frozenset(), chain_number, may_decline=False)
        if admission is None or admission.accepted != room:
            raise InternalError(f"{self._policy!r} declined keys of an earlier run, for which there are slots")
        self._policy.place(keys, run.slots, chain_number)

    def _is_sound(self, run: ChainRun) -> bool:
        """Whether all keys of a run can be adopted, as nearly always."""
        count, slots = len(run.keys), run.slots
        return (
            len(set(run.keys)) == len(set(slots)) == count
            and self.pool.held_back.are_all(slots)
            and len(self.absent(run.keys)) == count
        )

    def _sound_part(self, run: ChainRun) -> ChainRun:
        """The rows that can be adopted; of several for one key or slot, the last."""
        rows = dict(zip(run.slots, zip(run.keys, run.checksums, strict=True), strict=True))
        found = {
            key: (slot, checksum) for slot, (key, checksum) in rows.items() if self.pool.held_back.are_all((slot,))
        }
        keys = self.absent(list(found))
        slots, checksums = [found[key][0] for key in keys], [found[key][1] for key in keys]
        return ChainRun(run.pool, run.chain, keys, slots, checksums)

    def _retire(self, keys: Sequence[OffloadKey], slots: Sequence[int]) -> Held:
        self._retiring.update(slots)
        return self.pool.retire(keys, slots) if keys else Held((), ())
