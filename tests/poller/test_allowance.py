"""How much may be spun away."""

import pytest

from aiokvoffload.poller.allowance import SpinAllowance


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
