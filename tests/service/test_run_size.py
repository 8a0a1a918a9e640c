"""Steps that stay short, on whatever machine."""

from aiokvoffload.service.run_size import MIN_KEYS, MIN_KEYS_THERE, TARGET_S, RunSize, RunSizes


def learn(size: RunSize, *, fixed_s: float, key_s: float, times: int = 50) -> None:
    for _ in range(times):
        size.learn(size.keys, fixed_s + size.keys * key_s)


def test_it_settles_where_a_run_takes_the_target() -> None:
    size = RunSize(4096)
    learn(size, fixed_s=TARGET_S / 3, key_s=TARGET_S / 300)
    assert abs(size.keys - 200) <= 3


def test_it_grows_again_when_the_machine_is_fast_again() -> None:
    size = RunSize(512)
    learn(size, fixed_s=0, key_s=TARGET_S / 100)
    assert size.keys <= 102
    learn(size, fixed_s=0, key_s=TARGET_S / 10_000)
    assert size.keys == 512


def test_it_keeps_its_bounds_whatever_a_run_took() -> None:
    size = RunSize(512)
    learn(size, fixed_s=1, key_s=1)
    assert size.keys == MIN_KEYS
    small = RunSize(4)
    learn(small, fixed_s=1, key_s=1)
    assert small.keys == 4
    assert RunSize(0).keys == 1


def test_short_runs_and_clocks_that_stand_still_teach_nothing() -> None:
    size = RunSize(512)
    size.learn(24, 1.0)
    size.learn(512, 0.0)
    assert size.keys == 512


def test_fragments_bound_only_the_runs_that_the_loop_enqueues() -> None:
    sizes = RunSizes(512, 1024, [32, 4])
    assert [sizes.of(group_idx, enqueued_here=True).keys for group_idx in range(2)] == [32, 256]
    assert [sizes.of(group_idx, enqueued_here=False).keys for group_idx in range(2)] == [512, 512]
    assert sizes.most_keys == 512


def test_what_one_way_of_enqueueing_took_says_nothing_of_the_other() -> None:
    sizes = RunSizes(512, 1 << 20, [1])
    learn(sizes.of(0, enqueued_here=True), fixed_s=1, key_s=1)
    assert sizes.of(0, enqueued_here=True).keys == MIN_KEYS
    assert sizes.of(0, enqueued_here=False).keys == 512
    learn(sizes.of(0, enqueued_here=False), fixed_s=1, key_s=1)
    assert sizes.of(0, enqueued_here=False).keys == MIN_KEYS_THERE
