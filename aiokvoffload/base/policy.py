"""The contract of a cache policy: which keys stay."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

from aiokvoffload.base.keys import OffloadKey


class Admission(NamedTuple):
    """A policy's answer: the first `accepted` keys become resident, `victims` leave to make room."""

    accepted: int
    victims: Sequence[OffloadKey]


class CachePolicy(ABC):
    """Orders the resident keys of one pool; owns no slot and moves no byte. Synchronous and deterministic.

    It sees chains: `keys` stand head first, and a chain is evicted tail first, since a tail without its head is of no
    use. A request may give its chain run by run, while others do the same, so the caller numbers chains, from 0, a new
    one for each request: keys given later under the same number continue it, and stand behind those given before. A
    chain that is used or grows becomes the most recent one as a whole; a key belongs to the chain under which it was
    given last. The caller holds the rule that one request is one use: it passes each key to `access` once per request.

    Args:
        capacity: most keys that can be resident at once.
    """

    @abstractmethod
    def __init__(self, capacity: int) -> None: ...

    @abstractmethod
    def access(self, keys: Sequence[OffloadKey], chain: int) -> None:
        """Count one use of each key, resident or not, by one request; of no keys is no use.

        Args:
            keys: distinct keys in chain order.
            chain: number of the request's chain, which those that are resident continue.
        """

    @abstractmethod
    def admit(
        self, keys: Sequence[OffloadKey], room: int, protected: Collection[OffloadKey], chain: int
    ) -> Admission | None:
        """Make a leading part of `keys` resident and name the victims that leave for it.

        Args:
            keys: absent keys in chain order, without duplicates.
            room: how many keys can be added before anything must leave.
            protected: keys that may not be victims, besides the pinned ones; all that were given as `chain` are among
                them. They may be many more than `keys`, so a policy must not look at all of them in every call (I10);
                a set given again has only grown since.
            chain: number of the chain that `keys` continue.

        Returns:
            The admission, already applied to the policy's order; `None` when no key is accepted, and then the policy
            is as it was before (I6).
        """

    @abstractmethod
    def count_victims(self, count: int, protected: Collection[OffloadKey], chain: int) -> int:
        """How many of `count` victims `admit` would find if `protected` must stay, with all of `chain`; none leaves."""

    @abstractmethod
    def remove(self, keys: Iterable[OffloadKey]) -> None:
        """Forget resident keys that left for another reason than eviction; unknown keys are ignored."""

    @abstractmethod
    def pin(self, keys: Iterable[OffloadKey]) -> None:
        """These resident keys may not be victims until they are unpinned; each key is announced once."""

    @abstractmethod
    def unpin(self, keys: Iterable[OffloadKey]) -> None:
        """These keys may be victims again; keys that were removed meanwhile are ignored."""

    @abstractmethod
    def clear(self) -> Sequence[dict[Any, Any]]:
        """Forget every key, every pin and what was learned, at once.

        Returns:
            The containers that held many keys, for the caller to empty little by little: freeing them in one go would
            stop the loop (I10); a dictionary among the values of one is emptied in the same way. A policy that makes
            new ones returns the old ones.
        """

    @abstractmethod
    def export(self) -> Sequence[OffloadKey]:
        """All resident keys, the one to leave first in front."""

    @abstractmethod
    def seed(self, keys: Sequence[OffloadKey]) -> None:
        """Take over another policy's `export()`; called on an empty policy, at most `capacity` keys."""

    @abstractmethod
    def __len__(self) -> int: ...
