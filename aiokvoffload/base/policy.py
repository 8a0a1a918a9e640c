"""The contract of a cache policy: which keys stay."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence, Set
from itertools import islice
from typing import Any, NamedTuple, Protocol

from aiokvoffload.base.keys import OffloadKey


class Admission(NamedTuple):
    """A policy's answer: the first `accepted` keys become resident; `victims` leave, and with them their `slots`."""

    accepted: int
    victims: Sequence[OffloadKey]
    slots: Sequence[int]


class Residents(Protocol):
    """What a policy sees of the pool whose keys it orders."""

    @property
    def capacity(self) -> int:
        """Number of slots; slots are 0 to `capacity - 1`."""

    def are_free(self, slots: Collection[int]) -> bool:
        """Whether no transfer holds any of these slots; the keys in held ones may not leave."""


class CachePolicy(ABC):
    """Orders the resident keys of one pool; owns no slot and moves no byte. Synchronous and deterministic.

    A resident key comes with its slot, a small number that is its own for as long as it is resident: what a policy
    remembers of each of them can lie in arrays by slot, which never grow and cost a few bytes a key.

    It sees chains: slots and keys stand head first, and a chain is evicted tail first, since a tail without its head is
    of no use. A request may give its chain run by run, while others do the same, so the caller numbers chains, from 0,
    a new one for each request: what is given later under the same number continues it, and stands behind what was given
    before. A chain that is used or grows becomes the most recent one as a whole; a key belongs to the chain under which
    it was given last. The caller holds the rule that one request is one use: it passes each key to `access` once per
    request.

    What a tier finds again after a restart is admitted and placed too, the earliest stored first: nothing of it was
    used before, there is room for all of it, and nothing may be declined.

    Args:
        residents: the pool; a policy only reads it.
    """

    @abstractmethod
    def __init__(self, residents: Residents) -> None: ...

    @abstractmethod
    def access(
        self, resident: Sequence[OffloadKey], slots: Sequence[int], absent: Sequence[OffloadKey], chain: int
    ) -> None:
        """Count one use of each key by one request; of no keys is no use.

        Where there are both resident and absent keys, the first of all is absent: the resident ones lie behind it.

        Args:
            resident: distinct resident keys, in chain order.
            slots: the slot of each.
            absent: distinct keys that are not resident, in chain order.
            chain: number of the request's chain, which the resident ones continue.
        """

    @abstractmethod
    def admit(
        self,
        keys: Sequence[OffloadKey],
        room: int,
        protected: Set[OffloadKey],
        chain: int,
        *,
        may_decline: bool = True,
    ) -> Admission | None:
        """Choose a leading part of `keys` to become resident, and the victims that leave for it.

        Args:
            keys: absent keys in chain order, without duplicates.
            room: how many keys can be added before anything must leave.
            protected: keys that may not be victims, besides those in slots that are held; all that were given as
                `chain` are among them. They may be many more than `keys`, so a policy must not look at all of them in
                every call (I10); those of one chain only grow from call to call. Where there is room for all `keys`
                it may be empty.
            chain: number of the chain that `keys` continue.
            may_decline: whether keys that are worth less than any victim may be declined; where not, as many are
                accepted as there are slots for.

        Returns:
            The admission: the victims are out of the policy's order, and `place` follows; `None` when no key is
            accepted, and then the policy is as it was before (I6).
        """

    @abstractmethod
    def place(self, keys: Sequence[OffloadKey], slots: Sequence[int], chain: int) -> None:
        """Take the keys that `admit` accepted into the order; always follows an admission, before anything else.

        Args:
            keys: the accepted keys, in chain order.
            slots: the slot of each.
            chain: number of the chain that they continue.
        """

    @abstractmethod
    def count_victims(self, count: int, protected: Set[OffloadKey], chain: int) -> int:
        """How many of `count` victims `admit` would find if `protected` must stay, with all of `chain`; none leaves."""

    @abstractmethod
    def remove(self, slots: Sequence[int]) -> None:
        """Forget resident keys that left for another reason than eviction."""

    @abstractmethod
    def release(self, slots: Collection[int]) -> None:
        """One hold of each of these slots has ended, which others may still hold, or which may have lost their keys.

        It is for a policy that sets held slots aside while it looks for victims, rather than pass over them each time.
        """

    @abstractmethod
    def clear(self) -> Sequence[dict[Any, Any]]:
        """Forget every key and what was learned, at once.

        Returns:
            The containers that held many keys, for the caller to empty little by little: freeing them in one go would
            stop the loop (I10); a dictionary among the values of one is emptied in the same way. A policy that makes
            new ones returns the old ones.
        """

    @abstractmethod
    def export(self) -> Mapping[int, OffloadKey]:
        """All resident keys by slot, the one to leave first in front."""

    def first_to_leave(self, count: int) -> Sequence[tuple[int, OffloadKey]]:
        """Slots and keys of the first `count` of `export`, held ones included.

        A policy that can tell without going through all of them should; this goes through all of them.
        """
        return list(islice(self.export().items(), count))

    def rest_of_run(self, slot: int) -> tuple[Sequence[OffloadKey], Sequence[int]]:
        """Resident keys that were given behind that of `slot`, and their slots; perhaps not all, perhaps none.

        Whoever looks for a long chain compares it with these, instead of looking up key by key, and reads from these
        slots: a wrong one gives wrong bytes. A policy that keeps keys as they were given should override this.
        """
        del slot
        return (), ()

    @abstractmethod
    def seed(self, residents: Mapping[int, OffloadKey]) -> None:
        """Take over another policy's `export()` for the same pool; called on an empty policy."""

    @abstractmethod
    def __len__(self) -> int: ...
