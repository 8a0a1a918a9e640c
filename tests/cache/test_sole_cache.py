"""One group's cache: long chains are found run by run, and the answer is that of looking up each key."""

import hashlib
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiokvoffload.base import OffloadKey, make_offload_key
from aiokvoffload.cache.sole_cache import SoleCache
from aiokvoffload.cache.uses import RequestUses
from aiokvoffload.errors import ArgumentError
from aiokvoffload.registry import resolve

KEYS = tuple(make_offload_key(hashlib.sha256(b"%d" % number).digest(), 0) for number in range(400))
OTHERS = tuple(make_offload_key(hashlib.sha256(b"other %d" % number).digest(), 0) for number in range(400))


class Stored:
    """A cache, and requests that store parts of two chains which begin alike."""

    def __init__(self, policy: str, num_slots: int) -> None:
        self.cache = SoleCache(num_slots, resolve("policies", policy), span=1)
        self._numbers = count()

    def store(self, keys: tuple[OffloadKey, ...]) -> None:
        number, absent = next(self._numbers), self.cache.absent(keys)
        if absent and (reserved := self.cache.reserve(absent, keys, frozenset(), number)) is not None:
            self.cache.complete_write(reserved[0])

    def use(self, keys: tuple[OffloadKey, ...]) -> None:
        self.cache.access(keys, next(self._numbers))

    def check(self, keys: tuple[OffloadKey, ...]) -> None:
        assert self.cache.find_leading(keys) == self.cache.pool.index.find_leading(keys)


parts = st.tuples(st.sampled_from(("store", "use")), st.integers(0, 1), st.integers(0, 380), st.integers(1, 200))


@pytest.mark.parametrize("policy", ["lru", "arc", "sieve", "adaptive"])
@given(steps=st.lists(parts, max_size=12), fork=st.integers(1, 300))
@settings(max_examples=60)
def test_a_long_chain_is_found_as_far_as_key_by_key(
    policy: str, steps: list[tuple[str, int, int, int]], fork: int
) -> None:
    chains = KEYS, KEYS[:fork] + OTHERS[fork:]
    stored = Stored(policy, num_slots=300)
    stored.store(KEYS[:250])
    for action, which, begin, size in steps:
        getattr(stored, action)(chains[which][begin : begin + size])
        for chain in chains:
            stored.check(chain)
            stored.check(chain[begin:])


def test_what_equals_a_key_but_is_none_is_refused_in_a_long_chain_too() -> None:
    stored = Stored("lru", num_slots=300)
    stored.store(KEYS[:200])
    keys = list(KEYS[:200])
    keys[150] = OffloadKey(bytearray(keys[150]))  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"keys\[150\]"):
        stored.cache.find_leading(tuple(keys))


def test_keys_that_are_equal_and_not_the_same_object_are_found() -> None:
    stored = Stored("lru", num_slots=300)
    stored.store(KEYS[:200])
    again = tuple(OffloadKey(bytes(bytearray(key))) for key in KEYS)
    assert stored.cache.find_leading(again) == stored.cache.find_leading(KEYS)
    assert len(stored.cache.find_leading(again)) == 200


@pytest.mark.parametrize("num_stored", [10, 1000])
def test_what_a_long_lookup_found_is_pinned_run_by_run_and_not_gone_through_by_the_collector(num_stored: int) -> None:
    chain = tuple(make_offload_key(b"%032d" % number, 0) for number in range(1200))
    stored, uses = Stored("lru", num_slots=1200), RequestUses(0)
    stored.store(chain[:num_stored])
    assert stored.cache.count_leading(chain, uses) == num_stored
    assert [each for each in uses.found if isinstance(each, tuple)] == []
    for begin in range(0, num_stored, 400):
        run = chain[begin : min(begin + 400, num_stored)]
        assert uses.slots_of(run, stored.cache.pool.removals) == stored.cache.pool.index.find_leading(run)
