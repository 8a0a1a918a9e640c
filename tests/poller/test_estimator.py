"""What is learned from transfers that have ended."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiokvoffload.poller.estimator import TransferEstimator

SIZES = (65_536, 2 << 20, 16 << 20, 256 << 20)


def taught(*, latency_s: float, bytes_per_s: float, noise: float = 0.0, strays: float = 0.0) -> TransferEstimator:
    estimator, dice = TransferEstimator(), random.Random(1)  # noqa: S311 - not for cryptography
    for _ in range(600):
        size = dice.choice(SIZES)
        seconds = (latency_s + size / bytes_per_s) * dice.uniform(1 - noise, 1 + noise)
        estimator.learn(size, seconds * 10 if dice.random() < strays else seconds)
    return estimator


@pytest.mark.parametrize("latency_s", [5e-6, 40e-6])
@pytest.mark.parametrize("bytes_per_s", [2e9, 54e9, 200e9])
def test_latency_and_rate_are_both_found_from_a_mixture_of_sizes(latency_s: float, bytes_per_s: float) -> None:
    estimator = taught(latency_s=latency_s, bytes_per_s=bytes_per_s)
    for size in (*SIZES, 4096, 1 << 30):
        assert estimator.forecast(size).seconds == pytest.approx(latency_s + size / bytes_per_s, rel=0.1, abs=4e-6)
    assert estimator.forecast(16 << 20).spread_s < 0.05 * estimator.forecast(16 << 20).seconds


def test_the_spread_is_as_wide_as_the_noise() -> None:
    calm, wild = (taught(latency_s=1e-5, bytes_per_s=5e10, noise=noise) for noise in (0.01, 0.2))
    for size in SIZES:
        assert calm.forecast(size).spread_s < wild.forecast(size).spread_s
        assert wild.forecast(size).spread_s > 0.1 * wild.forecast(size).seconds


def test_a_stray_in_twenty_ten_times_as_long_moves_the_forecast_little() -> None:
    estimator = taught(latency_s=1e-5, bytes_per_s=5e10, noise=0.02, strays=0.05)
    for size in SIZES:
        assert estimator.forecast(size).seconds == pytest.approx(1e-5 + size / 5e10, rel=0.15)


def test_equal_transfers_do_not_drive_the_parts_apart() -> None:
    """Least squares with forgetting would lose all it knew of other sizes."""
    estimator = taught(latency_s=1e-5, bytes_per_s=5e10)
    for _ in range(10_000):
        estimator.learn(2 << 20, (1e-5 + (2 << 20) / 5e10) * 1.01)
    for size in SIZES:
        assert estimator.forecast(size).seconds == pytest.approx(1e-5 + size / 5e10, rel=0.05)


def test_a_bus_that_has_become_slower_is_followed_within_some_twenty_transfers() -> None:
    estimator = taught(latency_s=1e-5, bytes_per_s=5e10, noise=0.01)
    for _ in range(25):
        estimator.learn(16 << 20, 1e-5 + (16 << 20) / 2.5e10)
    assert estimator.forecast(16 << 20).seconds == pytest.approx((16 << 20) / 2.5e10, rel=0.1)


def test_the_first_transfer_replaces_the_guess() -> None:
    estimator = TransferEstimator()
    estimator.learn(256 << 20, 0.1)
    assert estimator.forecast(256 << 20).seconds == pytest.approx(0.1, rel=0.05)
    assert estimator.count == 1
    assert "1 learned" in repr(estimator)


@given(st.lists(st.tuples(st.integers(0, 1 << 40), st.floats(0.0, 1e4)), max_size=60), st.integers(0, 1 << 40))
def test_forecasts_stay_finite_and_above_zero_whatever_is_learned(lessons: list[tuple[int, float]], size: int) -> None:
    estimator = TransferEstimator()
    for lesson in lessons:
        estimator.learn(*lesson)
    forecast = estimator.forecast(size)
    assert 0.0 < forecast.seconds < float("inf")
    assert 0.0 < forecast.spread_s < float("inf")
