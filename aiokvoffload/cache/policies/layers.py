"""Several recency lists, in each of which slots leave by age: what most policies are made of. Knows no rule to choose.

A policy puts each slot into one layer, moves it between layers, and says which of them gives the next victim.
"""

from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence, Set
from itertools import groupby
from typing import Any

from aiokvoffload.base import Admission, CachePolicy, OffloadKey, Residents
from aiokvoffload.cache.policies.recency import LAYER_MASK, SEEDED, RecencyList, no_chains
from aiokvoffload.cache.policies.runs import Victims


class Layers(dict[int, RecencyList]):
    """Recency lists over the slots of one pool, by number; one that is asked for first is made.

    Args:
        residents: the pool.
        chain_of: the chain of each slot, which they share.
    """

    __slots__ = ("_chain_of", "_residents")

    def __init__(self, residents: Residents, chain_of: list[int]) -> None:
        super().__init__()
        self._residents = residents
        self._chain_of = chain_of

    def __missing__(self, number: int) -> RecencyList:
        made = self[number] = RecencyList(self._residents, self._chain_of, layer=number)
        return made


class LayeredPolicy(CachePolicy):
    """The part of a policy that follows from where its slots are.

    A store that does not fit is cut to its leading part.

    Args:
        residents: the pool whose keys it orders.

    Attributes:
        layers: slots by age, for each layer that has been used, which are numbered from 0 to 255.
    """

    __slots__ = ("_chain_of", "layers")

    def __init__(self, residents: Residents) -> None:
        self._chain_of = no_chains(residents.capacity)
        self.layers = Layers(residents, self._chain_of)

    @abstractmethod
    def evict(self, count: int, protected: Set[OffloadKey], chain: int) -> Victims:
        """Take `count` slots out, fewer only if no more may leave; none of `chain`, all of which is protected."""

    def admit(
        self,
        keys: Sequence[OffloadKey],
        room: int,
        protected: Set[OffloadKey],
        chain: int,
        *,
        may_decline: bool = True,
    ) -> Admission | None:
        """Admit the leading part that fits."""
        missing = len(keys) - room
        if missing <= 0:
            return Admission(len(keys), (), ())
        victims, slots = self.evict(missing, protected, chain)
        accepted = room + len(slots)
        return Admission(accepted, victims, slots) if accepted else None

    def add_each(
        self,
        keys: Sequence[OffloadKey],
        slots: Sequence[int],
        layers: Sequence[int],
        chain: int,
        *,
        stamp: int = 0,
    ) -> None:
        """Put slots that are in no layer into one each; `stamp` is the policy's, who may ask for that of the oldest."""
        for layer, begin, end in _runs_of(layers):
            self.layers[layer].add(keys[begin:end], slots[begin:end], chain, stamp=stamp)

    def layer_of(self, slot: int) -> int:
        """The layer of a slot; that of one without a key means nothing."""
        return self._chain_of[slot] & LAYER_MASK

    def rest_of_run(self, slot: int) -> tuple[Sequence[OffloadKey], Sequence[int]]:
        """What is behind it in its run, in its layer."""
        return self.layers[self.layer_of(slot)].rest_of_run(slot)

    def renew(self, chain: int) -> None:
        """Make a chain the most recent one in every layer that has some of it."""
        for layer in self.layers.values():
            if chain in layer.chains:  # of most it is in one, and a call for each of the others costs as much
                layer.renew(chain)

    def in_order(self) -> list[RecencyList]:
        """The layers, the first to be evicted from in front."""
        return [self.layers[number] for number in sorted(self.layers)]

    def count_victims(self, count: int, protected: Set[OffloadKey], chain: int) -> int:
        """How many of `count` victims there are."""
        found = 0
        for layer in self.layers.values():
            found += layer.count_victims(count - found, protected, chain)
        return found

    def remove(self, slots: Sequence[int]) -> None:
        """Take slots out of their layers."""
        chain_of = self._chain_of
        for layer, begin, end in _runs_of([chain_of[slot] & LAYER_MASK for slot in slots]):
            self.layers[layer].remove(slots[begin:end])

    def release(self, slots: Collection[int]) -> None:
        """Let slots leave again; their place in the order is that of their last use."""
        for layer in self.layers.values():
            if layer.asides:  # seldom, so that this is all that it costs
                layer.release(slots)

    def clear(self) -> Sequence[dict[Any, Any]]:
        """Forget every key."""
        containers = [container for layer in self.layers.values() for container in layer.clear()]
        self.layers.clear()
        return containers

    def export(self) -> Mapping[int, OffloadKey]:
        """All keys, layer by layer, each the oldest chain first, its tail in front."""
        residents: dict[int, OffloadKey] = {}
        for layer in self.in_order():
            residents.update(layer.residents())
        return residents

    def first_to_leave(self, count: int) -> Sequence[tuple[int, OffloadKey]]:
        """The first of `export`: mostly right, since a rule of the policy's chooses the layer each time."""
        first: list[tuple[int, OffloadKey]] = []
        for layer in self.in_order():
            first += layer.oldest(count - len(first))
        return first

    def seed(self, residents: Mapping[int, OffloadKey]) -> None:
        """Take over an order, as that of one chain that was used once."""
        self.place(list(residents.values())[::-1], list(residents)[::-1], SEEDED)

    def __len__(self) -> int:
        return sum(map(len, self.layers.values()))


def _runs_of(layers: Sequence[int]) -> list[tuple[int, int, int]]:
    """The runs of slots in one layer: that layer, the first of them and the one after the last."""
    if layers and layers.count(layers[0]) == len(layers):
        return [(layers[0], 0, len(layers))]  # as most often
    runs, end = [], 0
    for layer, run in groupby(layers):
        begin, end = end, end + len(list(run))
        runs.append((layer, begin, end))
    return runs
