"""Calls on their way back to the owner's thread."""

import logging

import pytest

from aiokvoffload.cpu.threads import Handover


def test_a_call_that_raises_keeps_no_other_back(caplog: pytest.LogCaptureFixture) -> None:
    """Fault 27."""
    handover, called = Handover(), list[int]()
    handover.post(lambda: called.remove(7))
    handover.post(lambda: called.append(1))
    with caplog.at_level(logging.CRITICAL):
        handover.run()
    assert called == [1]
