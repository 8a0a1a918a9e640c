from hypothesis import given
from hypothesis import strategies as st

from aiokvoffload.cache.free_runs import FreeRuns, runs_of


def test_a_long_enough_run_is_taken_in_one_piece() -> None:
    free = FreeRuns(100, taken=[10, 50])
    assert list(runs_of(free.take(45))) == [(51, 96)]
    assert list(runs_of(free.take(8))) == [(0, 8)]


def test_slots_that_come_back_join_their_neighbours() -> None:
    free = FreeRuns(9)
    slots = free.take(9)
    free.give(slots[0:3])
    free.give(slots[6:9])
    free.give(slots[3:6])
    assert repr(free) == "FreeRuns(9 slots in 1 runs)"
    assert free.take(9) == list(range(9))


def test_single_slots_do_not_cut_long_runs() -> None:
    free = FreeRuns(100, taken=[1])
    assert free.take(1) == [0]
    assert list(runs_of(free.take(98))) == [(2, 100)]


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 20), st.randoms(use_true_random=False)), max_size=40))
def test_every_slot_is_free_or_taken_exactly_once(steps: list[tuple[bool, int, object]]) -> None:
    free, taken = FreeRuns(24), list[int]()
    for gives, count, random in steps:
        if gives:
            random.shuffle(taken)  # type: ignore[attr-defined]
            free.give(taken[:count])
            taken = taken[count:]
        else:
            taken += free.take(min(count, free.count))
        assert sorted([*taken, *free]) == list(range(24))
        assert free.count == 24 - len(taken)
        assert free._size_classes == FreeRuns(24, taken)._size_classes
        assert free._filled == FreeRuns(24, taken)._filled


def test_more_slots_join_the_last_free_run() -> None:
    free = FreeRuns(3)
    free.extend(3, 200)
    assert repr(free) == "FreeRuns(200 slots in 1 runs)"
    assert free.take(200) == list(range(200))
    free.extend(200, 203)
    assert free.take(3) == [200, 201, 202]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=30))
def test_slots_that_come_between_are_free_once_too(steps: list[tuple[int, int]]) -> None:
    free, taken, num_slots = FreeRuns(0), list[int](), 0
    for more, count in steps:
        free.extend(num_slots, num_slots + more)
        num_slots += more
        free.give(taken[: count // 2])
        taken = taken[count // 2 :] + free.take(min(count, free.count))
        assert sorted([*taken, *free]) == list(range(num_slots))


@given(st.sets(st.integers(0, 40)), st.sets(st.integers(0, 40)))
def test_what_is_removed_is_free_no_more(taken: set[int], removed: set[int]) -> None:
    runs = FreeRuns(41, taken)
    for slots in (sorted(removed - taken)[:7], sorted(removed - taken)[7:]):
        runs.remove(slots)
    assert sorted(runs) == sorted(set(range(41)) - taken - removed)
    assert runs.count == 41 - len(taken | removed)
    runs.give(removed - taken)
    assert sorted(runs) == sorted(set(range(41)) - taken)
