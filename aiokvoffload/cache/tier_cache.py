"""The contract of what a tier keeps: chunks of all its groups, by key. Knows of requests what they used; no tokens."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence, Set
from typing import Generic, Protocol, TypeVar

from aiokvoffload.base import LookupResult, OffloadKey
from aiokvoffload.cache.discard import DiscardPile
from aiokvoffload.cache.pool import PoolStatistics
from aiokvoffload.cache.uses import RequestUses
from aiokvoffload.errors import ArgumentError


class Record(Protocol):
    """What one transfer holds, which is also what ends it; whoever made it may know more of it."""

    @property
    def slots(self) -> Sequence[int]:
        """The slots, each within the pool of its key's group."""

    @property
    def keys(self) -> Sequence[OffloadKey]:
        """The key that each of them had when the transfer was prepared."""


Reservation = tuple[Record, Sequence[OffloadKey]]
"""Slots for keys that are to be written, and who left for them."""

_Record = TypeVar("_Record", bound=Record)


class TierCache(ABC, Generic[_Record]):
    """The resident chunks of one tier. Keys that are none are refused with `ArgumentError` before anything changes."""

    @abstractmethod
    def lookup(self, key: OffloadKey) -> LookupResult:
        """Say what `key` is now."""

    @abstractmethod
    def count_leading(self, keys: Sequence[OffloadKey], uses: RequestUses | None) -> int:
        """Number of the leading keys that are readable or being written.

        Args:
            keys: in chain order.
            uses: of the request that asks, if it is begun: it may remember what was found, for its load.
        """

    @abstractmethod
    def longest_common_position(self, keys_by_group: Sequence[Sequence[OffloadKey]]) -> int:
        """As in `cache.prefix`, over keys that are readable or being written."""

    @abstractmethod
    def absent(self, keys: Sequence[OffloadKey]) -> Sequence[OffloadKey]:
        """The keys that have no slot, in the order given; `keys` itself if that is all of them.

        Raises:
            ArgumentError: one of them is no key of a known group, or stands there twice.
        """

    @abstractmethod
    def use(self, keys: Sequence[OffloadKey], uses: RequestUses) -> None:
        """Count a use of each key that a request has not used before, as the continuation of its chain.

        Args:
            keys: of one call, group after group; together they are one chain over all groups.
            uses: what the request has used so far.
        """

    @abstractmethod
    def use_sifting(self, keys: Sequence[OffloadKey], uses: RequestUses) -> Sequence[OffloadKey]:
        """The same; returns the keys that have no slot, as one chain over all groups.

        Raises:
            ArgumentError: one of those is no key of a known group, or stands there twice.
        """

    @abstractmethod
    def pin_leading(self, keys: Sequence[OffloadKey]) -> _Record:
        """Hold the leading keys that can be read now, for reading."""

    @abstractmethod
    def use_pinning(self, keys: Sequence[OffloadKey], uses: RequestUses) -> _Record:
        """The same, and count a use of those keys."""

    @abstractmethod
    def reserve(
        self,
        chain: Sequence[OffloadKey],
        offered: Sequence[OffloadKey],
        protected: Set[OffloadKey],
        chain_number: int,
        *,
        may_decline: bool = True,
    ) -> tuple[_Record, Sequence[OffloadKey]] | None:
        """Reserve slots for a leading part of `chain`, evicting where there is no room.

        Args:
            chain: absent, distinct keys in chain order.
            offered: all keys of the call, group after group; the result has this order.
            protected: keys that must stay; all that were given under this number are among them.
            chain_number: number of the request's chain, which they continue.
            may_decline: whether the policy may decline what would fit.

        Returns:
            The reservation, and who left for it; `None` if there is room for nothing, and nothing has changed (I6).
        """

    @abstractmethod
    def complete_read(self, record: _Record, failed_keys: Collection[OffloadKey] = ()) -> Collection[OffloadKey]:
        """End a read; keys that could not be read are dropped, unless they have other slots by now.

        Returns:
            The dropped keys.
        """

    @abstractmethod
    def complete_write(self, record: _Record, failed_keys: Collection[OffloadKey] = ()) -> Sequence[OffloadKey]:
        """End a write; failed keys leave no trace.

        Returns:
            The keys that became readable.
        """

    @abstractmethod
    def quarantine_write(self, record: _Record) -> None:
        """Drop the keys of a write that goes on; its slots are quarantined until `abandon_write`."""

    @abstractmethod
    def abandon_read(self, record: _Record) -> None:
        """End a read of an epoch that is over: its slots are quarantined, its keys mean nothing any more."""

    @abstractmethod
    def abandon_write(self, record: _Record) -> None:
        """End a write of an epoch that is over, or one whose slots were quarantined."""

    @abstractmethod
    def first_to_leave(self, count: int) -> Sequence[OffloadKey]:
        """The readable keys among the `count` of each pool that come first in the order of leaving; none leaves."""

    @abstractmethod
    def grow(self, ready_slots: Sequence[int], *, ended: bool) -> None:
        """Use so many slots of each pool from now on; none will follow if it `ended`.

        Raises:
            ArgumentError: `ready_slots` does not name one number for each pool.
        """

    @abstractmethod
    def readable_keys(self) -> Iterator[list[OffloadKey]]:
        """All keys that can be read, part by part; each part is as it is when it is asked for."""

    @abstractmethod
    def clear(self, pile: DiscardPile) -> int:
        """Drop every key at once; what held them goes on the pile. Returns how many were readable."""

    @abstractmethod
    def statistics(self) -> tuple[PoolStatistics, ...]:
        """Slots by state, one entry per pool."""

    @abstractmethod
    def check_integrity(self, reads: Sequence[_Record], writes: Sequence[_Record]) -> None:
        """Check that slots add up, and that they are held by exactly these transfers (I7).

        Raises:
            InternalError: it does not hold.
        """


def require_one_each(ready_slots: Sequence[int], num_pools: int) -> None:
    """Check that there is one number for each pool.

    Raises:
        ArgumentError: there is not.
    """
    if len(ready_slots) != num_pools:
        raise ArgumentError(f"ready_slots must have one number for each of {num_pools} pools, got {ready_slots}")
