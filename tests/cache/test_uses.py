"""What one request used and looked up: each use counts once, and what was found is given out as it was given in."""

import gc

import pytest

from aiokvoffload.cache.uses import RequestUses
from aiokvoffload.testing.policy import make_keys


@pytest.mark.parametrize(("before", "after"), [(1, 20), (20, 1), (5, 5)])
def test_a_key_is_new_to_a_request_once_whichever_call_has_more_keys(before: int, after: int) -> None:
    uses, first = RequestUses(0), tuple(make_keys(*range(before)))
    second = tuple(make_keys(*range(100, 100 + after)))
    assert uses.count_use(first) is first
    assert uses.count_use(second) is second
    assert uses.count_use((*first, *second, *make_keys(7000))) == make_keys(7000)
    assert uses.used.keys() == {*first, *second, *make_keys(7000)}


def test_a_key_that_stands_twice_is_new_once() -> None:
    one, two = make_keys(1, 2)
    assert RequestUses(0).count_use((one, two, one)) == [one, two]


@pytest.mark.parametrize("count", [3, 500])
def test_slots_that_were_found_come_back_run_by_run_as_the_numbers_they_were(count: int) -> None:
    uses, keys, slots = RequestUses(0), tuple(make_keys(*range(count))), tuple(range(1000, 1000 + count))
    uses.found = keys, slots, 7, 0
    first, rest = uses.slots_of(keys[:2], 7), uses.slots_of(keys[2:], 7)
    assert first is not None
    assert rest is not None
    assert (*first, *rest) == slots
    assert uses.slots_of(keys[:1], 7) is None


def test_the_garbage_collector_goes_through_what_a_request_found_and_used_once() -> None:
    uses, keys = RequestUses(0), tuple(make_keys(*range(500)))
    uses.found = keys, tuple(range(500)), 0, 0
    uses.count_use(keys)
    gc.collect()
    referents = gc.get_referents(uses, uses.found)
    containers = [each for each in referents if gc.is_tracked(each) and hasattr(each, "__len__")]
    assert [each for each in containers if len(each) > 64] == []
