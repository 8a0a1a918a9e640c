"""What is learned from probes, and what a slot is then worth."""

import pytest

from aiokvoffload.cache.policies.gittins import BUCKET_OF, MOST_EPOCHS, NUM_BUCKETS, PRIOR, gittins_index, hazards
from aiokvoffload.cache.policies.reuse import ReuseModel, sample_mask


def test_a_hazard_is_the_share_of_those_that_come_to_an_age_and_are_used_there() -> None:
    reused, ended = [0.0] * NUM_BUCKETS, [0.0] * NUM_BUCKETS
    reused[0], ended[0] = 50.0, 50.0
    reused[3], ended[3] = 25.0, 25.0
    ended[-1] = 25.0
    chances = hazards(reused, ended, [0.0] * NUM_BUCKETS, 1.0)
    assert chances[0] == pytest.approx(50 / 76)
    assert chances[3] == pytest.approx(25 / 38.5)
    assert chances[1] == chances[2] == chances[4] == 0


def test_before_anything_is_seen_a_slot_is_worth_less_with_age() -> None:
    index = gittins_index(PRIOR)
    assert index == sorted(index, reverse=True)


def test_a_slot_is_worth_the_more_the_nearer_a_certain_use_is() -> None:
    chances = [0.0] * NUM_BUCKETS
    chances[6] = 1.0
    index = gittins_index(chances)
    assert index[:7] == sorted(index[:7])
    assert index[7:] == [0.0] * (NUM_BUCKETS - 7)


def test_a_loop_is_learned_as_one_age_of_reuse() -> None:
    model = ReuseModel(160, 7)
    for epoch in range(400):
        model.advance(epoch)
        model.observe(epoch % 24 << 27, 0)
    best = max(range(NUM_BUCKETS), key=model.values[0].__getitem__)
    assert best == BUCKET_OF[24]


def test_a_more_popular_level_is_never_worth_less() -> None:
    model = ReuseModel(160, 3)
    for epoch in range(400):
        model.advance(epoch)
        model.observe(epoch % 24 << 27, 0)
    for below, above in zip(model.values, model.values[1:], strict=False):
        assert all(low <= high for low, high in zip(below, above, strict=True))


def test_the_age_at_which_lru_evicts_is_that_by_which_the_pool_fills_up() -> None:
    """With one sampled key an epoch, which stands for two, a pool of 160 is full after 80."""
    model = ReuseModel(160, 7)
    for epoch in range(1200):
        model.advance(epoch)
        model.observe(epoch % 128 << 25, 0)
    assert 80 <= model.lru_epochs <= 81


def test_a_small_pool_samples_every_other_key_and_a_big_one_one_of_sixteen() -> None:
    assert [sample_mask(capacity) for capacity in (1, 256, 511, 512, 1024, 2048, 10**6)] == [1, 1, 1, 3, 7, 15, 15]


@pytest.mark.parametrize("jump", [1, 7, MOST_EPOCHS - 1, MOST_EPOCHS, MOST_EPOCHS + 1, 3 * MOST_EPOCHS])
@pytest.mark.parametrize("now", [0, 5, MOST_EPOCHS - 1, MOST_EPOCHS])
def test_who_has_waited_as_many_epochs_as_there_are_is_ancient_however_far_the_clock_jumps(now: int, jump: int) -> None:
    model = ReuseModel(1600, 2)
    for age in (9, 0):
        model.advance(max(0, now - age))
        model.observe(age << 28, 0)
    model.advance(now + jump)
    ages = [jump + min(9, now), jump]
    assert model._ancient[0] == sum(age >= MOST_EPOCHS for age in ages)
    assert sum(model._waiting[0]) == sum(age < MOST_EPOCHS for age in ages)


def test_a_jump_of_the_clock_makes_all_probes_ancient_and_costs_no_more_than_one_round() -> None:
    model = ReuseModel(160, 2)
    model.observe(1 << 27, 0)
    model.advance(10**9)
    assert model._ancient == [1, 0]
    assert not any(map(any, model._waiting))
    assert model.observe(1 << 27, 1) == 10**9
