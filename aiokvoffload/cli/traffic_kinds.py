"""Kinds of made-up traffic, by name: each alone and without end, so that one can say what a policy does.

Knows how traffic looks; knows nothing of caches. Nothing in it was fitted to a recorded trace.
"""

import math
import random
from bisect import bisect
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from itertools import accumulate, count, islice

Chain = tuple[int, ...]
"""Ids of a prompt's blocks, head first."""

_MOST_DOCUMENT_BLOCKS = 8


class _Documents:
    """Prompts of some blocks that come again as they are, numbered from 0; no two share a block."""

    def __init__(self, chance: random.Random, num_blocks: int) -> None:
        self._chance = chance
        self._chains: list[Chain] = []
        first = 0
        while first < num_blocks:
            self._chains.append(tuple(range(first, first + chance.randint(1, _MOST_DOCUMENT_BLOCKS))))
            first += len(self._chains[-1])

    def __len__(self) -> int:
        return len(self._chains)

    def __getitem__(self, number: int) -> Chain:
        return self._chains[number % len(self)]


class _Zipf:
    """Ranks from 0, of which rank r comes with a probability that falls as 1 / (r + 1) ** exponent."""

    def __init__(self, chance: random.Random, num_ranks: int, exponent: float) -> None:
        self._chance = chance
        self._bounds = list(accumulate((rank + 1) ** -exponent for rank in range(num_ranks)))

    def draw(self) -> int:
        return min(bisect(self._bounds, self._chance.random() * self._bounds[-1]), len(self._bounds) - 1)


def _uniform(chance: random.Random) -> Iterator[Chain]:
    """Every document as likely as any other: no order is better than another."""
    documents = _Documents(chance, 8_000)
    while True:
        yield documents[chance.randrange(len(documents))]


def _zipf(chance: random.Random) -> Iterator[Chain]:
    """Some documents are always more popular than others."""
    documents = _Documents(chance, 20_000)
    ranks = _Zipf(chance, len(documents), 0.9)
    while True:
        yield documents[ranks.draw()]


def _drift(chance: random.Random) -> Iterator[Chain]:
    """The popular documents of today are not those of tomorrow: every 20 requests each rank gets its neighbour's."""
    documents = _Documents(chance, 100_000)
    ranks = _Zipf(chance, 4_000, 0.9)
    order = list(range(4_000))
    chance.shuffle(order)  # else a document would rise through all ranks, one by one
    for number in count():
        yield documents[order[ranks.draw()] + number // 20]


def _loop(chance: random.Random) -> Iterator[Chain]:
    """One and the same round over all documents, and again: what was used last is needed last."""
    documents = _Documents(chance, 6_000)
    for number in count():
        yield documents[number]


def _scan(chance: random.Random) -> Iterator[Chain]:
    """Popular documents, and now and then a long row of others that nobody asks for again."""
    documents = _Documents(chance, 8_000)
    ranks = _Zipf(chance, len(documents), 0.8)
    fresh = count(1_000_000, _MOST_DOCUMENT_BLOCKS)
    while True:
        for _ in range(1_000):
            yield documents[ranks.draw()]
        for first in islice(fresh, 500):
            yield tuple(range(first, first + _MOST_DOCUMENT_BLOCKS))


def _chat(chance: random.Random) -> Iterator[Chain]:
    """Conversations of some turns under one of a few system prompts; each turn has all that was said before.

    One begins at each tick of a clock; the next turn is some hundred ticks away, and every fourth is the last.
    """
    fresh = count()
    prompts = [tuple(islice(fresh, 4)) for _ in range(4)]
    popularity = _Zipf(chance, len(prompts), 1.0)
    turns: list[tuple[float, int, Chain]] = []
    for tick in count():
        heappush(turns, (float(tick), tick, prompts[popularity.draw()]))
        while turns and turns[0][0] <= tick:
            due, number, said = heappop(turns)
            said = (*said, *islice(fresh, chance.randint(1, 6)))
            yield said
            if chance.random() < 0.75:
                heappush(turns, (due + chance.lognormvariate(math.log(100), 1.0) + 1, number, said))


def _agents(chance: random.Random) -> Iterator[Chain]:
    """Tasks under one of a few tool descriptions: many quick steps that append, some of which branch off an earlier.

    At any time a few dozen tasks run. A task that is done never comes back, but for what it shares with others.
    """
    fresh = count()
    tools = [tuple(islice(fresh, chance.randint(6, 12))) for _ in range(8)]
    running: list[list[Chain]] = []
    while True:
        if len(running) < 30:
            running.append([(*chance.choice(tools), *islice(fresh, chance.randint(1, 8)))])
        task = chance.randrange(len(running))
        steps = running[task]
        base = steps[-1] if chance.random() < 0.85 else chance.choice(steps)
        steps.append((*base, *islice(fresh, chance.randint(1, 3))))
        yield steps[-1]
        if chance.random() < 0.05:
            del running[task]


KINDS: dict[str, Callable[[random.Random], Iterator[Chain]]] = {
    "uniform": _uniform,
    "zipf": _zipf,
    "drift": _drift,
    "loop": _loop,
    "scan": _scan,
    "chat": _chat,
    "agents": _agents,
}
