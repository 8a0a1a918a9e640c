"""How late alarms are."""

import pytest

from aiokvoffload.poller.lateness import MOST_S, Lateness


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
