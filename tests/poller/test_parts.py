"""The small parts: allowance, lateness, lags."""

import pytest

from aiokvoffload.poller import LagRecorder
from aiokvoffload.poller.allowance import SpinAllowance
from aiokvoffload.poller.lag import LAG_SAMPLES
from aiokvoffload.poller.lateness import MOST_S, Lateness


def test_an_allowance_is_a_share_of_time_and_little_of_it_can_be_saved() -> None:
    allowance = SpinAllowance(share=0.1, saved_s=0.001)
    assert allowance.left_s(1000.0) == pytest.approx(0.001)
    allowance.spend(0.0015)
    assert allowance.left_s(1000.0) < 0.0
    assert allowance.left_s(1000.006) > 0.0
    assert allowance.left_s(2000.0) == pytest.approx(0.001)
    assert repr(allowance) == "SpinAllowance(10%, 1000 µs left)"


def test_a_loop_that_was_busy_with_other_things_does_not_use_the_allowance_up_for_long() -> None:
    allowance = SpinAllowance(share=0.1, saved_s=0.001)
    allowance.left_s(10.0)
    allowance.spend(30.0)
    assert allowance.left_s(10.02) > 0.0


def test_lateness_is_learned_for_each_length_of_sleep_and_strays_do_not_matter() -> None:
    lateness = Lateness()
    for number in range(1000):
        lateness.learn(0.002, 0.06 if number % 10 == 0 else 60e-6)
        lateness.learn(50e-6, 10e-6)
    assert lateness.usual_s(0.002) == pytest.approx(60e-6, abs=10e-6)
    assert lateness.usual_s(50e-6) == pytest.approx(10e-6, abs=3e-6)
    assert lateness.usual_s(1.0) == 0.0


def test_lateness_has_a_bound() -> None:
    """I11."""
    lateness = Lateness()
    for _ in range(1000):
        lateness.learn(1e9, 1.0)
        lateness.learn(0.0, 1.0)
    assert lateness.usual_s(1e9) == lateness.usual_s(0.0) == MOST_S


def test_lags_are_kept_up_to_a_bound() -> None:
    """I11."""
    recorder = LagRecorder()
    assert recorder.statistics().samples == 0
    for number in range(LAG_SAMPLES + 100):
        recorder.add(float(number))
    statistics = recorder.statistics()
    assert (statistics.samples, statistics.max_s) == (LAG_SAMPLES, LAG_SAMPLES + 99.0)
    assert 99.0 < statistics.p50_s < statistics.p99_s < statistics.max_s
