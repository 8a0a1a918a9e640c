"""Both kinds of index are one dictionary to whoever asks."""

import random
from hashlib import sha256

import pytest

from aiokvoffload.base import OffloadKey, make_offload_key
from aiokvoffload.cache.slot_index import MOST_KEYS_IN_ONE, SlotIndex, make_slot_index
from aiokvoffload.testing.policy import make_keys


@pytest.fixture(params=[1, 2 * MOST_KEYS_IN_ONE], ids=["one", "many"])
def index(request: pytest.FixtureRequest) -> SlotIndex:
    return make_slot_index(request.param)


@pytest.mark.parametrize("seed", range(5))
def test_it_answers_as_a_dictionary_does(index: SlotIndex, seed: int) -> None:
    chance, plain = random.Random(seed), dict[OffloadKey, int]()  # noqa: S311 - no secret is made of it
    names = make_keys(*range(300))
    for _ in range(200):
        some = chance.sample(names, 20)
        if chance.random() < 0.5:
            slots = chance.sample(range(10_000), len(some))
            index.put(some, slots)
            plain.update(zip(some, slots, strict=True))
        else:
            here = [key for key in some if key in plain]
            assert index.remove(here) == list(map(plain.pop, here))
        assert len(index) == len(plain)
        assert dict(index.items()) == plain
        asked = sorted(chance.sample(names, 20), key=plain.__contains__, reverse=True)
        assert index.find(asked) == [plain.get(key) for key in asked]
        assert index.find_leading(asked) == tuple(plain[key] for key in asked if key in plain)
        assert list(index.absent(asked)) == [key for key in asked if key not in plain]
        assert [key in index for key in asked] == [key in plain for key in asked]
        assert index.get(asked[0]) == plain.get(asked[0])


def test_the_leading_keys_end_at_the_first_that_has_no_slot(index: SlotIndex) -> None:
    keys = make_keys(*range(5))
    index.put(keys, range(5))
    index.remove(keys[3:4])
    assert index.find_leading(keys) == (0, 1, 2)
    assert index.find_leading(keys[3:]) == ()
    assert index.find_leading([]) == ()


def test_clearing_hands_over_what_held_the_keys(index: SlotIndex) -> None:
    keys = make_keys(*range(50))
    index.put(keys, range(50))
    old = index.clear()
    assert {key for dictionary in old for key in dictionary} == set(keys)
    assert len(index) == 0
    assert index.absent(keys) is keys


def test_no_dictionary_of_a_big_index_is_big() -> None:
    """I10: a dictionary is rebuilt in one go."""
    index = make_slot_index(262_144)
    keys = [make_offload_key(sha256(b"%d" % number).digest(), 0) for number in range(9_999)]
    index.put(keys, range(len(keys)))
    assert max(map(len, index.clear())) < 2 * len(keys) / 64
