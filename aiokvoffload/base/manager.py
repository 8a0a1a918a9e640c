"""The contract of an offloading manager: which keys are resident, in which slots, and pinned by whom."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

from aiokvoffload.base.events import OffloadingEvent, ResidentPart
from aiokvoffload.base.keys import LookupResult, OffloadKey, ReqContext
from aiokvoffload.base.memory import LoadStoreSpec


class PrepareLoadOutput(NamedTuple):
    """A promise: `keys` are readable in the slots of `spec` and stay there until `complete_load(token)` (I3)."""

    token: int
    keys: Sequence[OffloadKey]
    spec: LoadStoreSpec


class PrepareStoreOutput(NamedTuple):
    """Slots reserved for `keys_to_store`, in the order of `spec`, until `complete_store(token)`.

    `evicted_keys` made room. Keys that were offered and are in neither list were resident already, are being written,
    or were filtered out.
    """

    token: int
    keys_to_store: Sequence[OffloadKey]
    spec: LoadStoreSpec
    evicted_keys: Sequence[OffloadKey]


class OffloadingManager(ABC):
    """Knows which keys are resident where, and decides what is kept. Synchronous: nothing here can block.

    Loads and stores have two phases. `prepare_*` returns an output whose `token` names the pins or reservations;
    `complete_*` releases exactly those, once: repeating it does nothing, a token never given raises.
    """

    @abstractmethod
    def lookup(self, key: OffloadKey, ctx: ReqContext) -> LookupResult:
        """Say whether `key` can be loaded. Changes nothing and pins nothing (I3)."""

    @abstractmethod
    def lookup_prefix(self, keys: Sequence[OffloadKey], ctx: ReqContext) -> int:
        """Number of leading keys that are not a MISS; the batch form of `lookup`."""

    @abstractmethod
    def absent(self, keys: Sequence[OffloadKey], ctx: ReqContext) -> Sequence[OffloadKey]:
        """The keys that are a MISS, in the order given; the batch form of `lookup` where hits and misses alternate."""

    @abstractmethod
    def lookup_groups(self, keys_by_group: Sequence[Sequence[OffloadKey]], ctx: ReqContext) -> int:
        """The longest common position at which every full group has its prefix and every windowed group its window."""

    @abstractmethod
    def prepare_load(self, keys: Sequence[OffloadKey], ctx: ReqContext) -> PrepareLoadOutput:
        """Pin the leading keys that are readable now, up to the first that is not, and count their use."""

    @abstractmethod
    def complete_load(self, token: int, failed_keys: Collection[OffloadKey] = ()) -> bool:
        """Release the pins of `token`; keys whose bytes could not be read are dropped.

        Returns:
            False if the cache was reset since the load was prepared: what was read is of the old epoch.

        Raises:
            ArgumentError: the token was never given by `prepare_load`.
        """

    @abstractmethod
    def prepare_store(self, keys: Sequence[OffloadKey], ctx: ReqContext) -> PrepareStoreOutput | None:
        """Count a use of `keys` and reserve slots for those that are absent and worth storing.

        Returns:
            The reservation (empty if there is nothing to store), or `None` if no room could be made for any key;
            nothing was evicted then (I6).
        """

    @abstractmethod
    def complete_store(self, token: int, failed_keys: Collection[OffloadKey] = ()) -> bool:
        """Make the stored keys readable; failed ones leave no trace (I4).

        Returns:
            False if the cache was reset since the store was prepared: nothing became readable.

        Raises:
            ArgumentError: the token was never given by `prepare_store`.
        """

    @abstractmethod
    def touch(self, keys: Sequence[OffloadKey], ctx: ReqContext) -> None:
        """Count a use of `keys` by this request, without moving anything.

        A chain may be touched in several runs, head first, and ends up as if in one call.
        """

    @abstractmethod
    def on_new_request(self, ctx: ReqContext) -> None:
        """Begin a request; calls for a request that was not begun are one-off uses."""

    @abstractmethod
    def on_request_finished(self, ctx: ReqContext) -> None:
        """End a request, if it was begun. Completions of what it prepared may still follow."""

    @abstractmethod
    def grow(self, ready_slots: Sequence[int], *, ended: bool = False) -> None:
        """Use more slots from now on: of each pool so many, from slot 0 on.

        Args:
            ready_slots: for each pool; fewer than before, or than it has, change nothing for it.
            ended: whether there will be no more.

        Raises:
            ArgumentError: it does not name one number for each pool.
        """

    @abstractmethod
    def take_events(self) -> list[OffloadingEvent]:
        """The changes since the last call, in the order they became true."""

    @abstractmethod
    def resident_keys(self) -> Iterator[ResidentPart]:
        """The readable keys, part by part.

        Each part is true at the moment when it is asked for, and takes well under a millisecond; between two parts
        anything may change. A key stays in the part it is in, so a part and all later events of its tier are exact.
        """

    @abstractmethod
    def reset_cache(self) -> int:
        """Drop every key at once and begin a new epoch; slots still being copied are quarantined until they end.

        Returns:
            How many readable keys were cleared.
        """

    @abstractmethod
    def statistics(self) -> Any:
        """A frozen record of counts: for metrics, a `cache.statistics.ManagerStatistics` or one with its attributes."""

    @abstractmethod
    def check_integrity(self) -> None:
        """Check that free + writing + pinned + evictable + quarantined = capacity, and all that hangs on it (I7).

        Raises:
            InternalError: it does not hold.
        """
