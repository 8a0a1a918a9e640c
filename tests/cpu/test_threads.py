"""The two ways between threads: work to the submission thread, calls back to the owner."""

import logging
import threading

import pytest

from aiokvoffload.cpu.threads import Handover, SubmissionThread
from aiokvoffload.errors import BrokenError


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt])
def test_work_that_raises_ends_no_thread(error: type[BaseException], caplog: pytest.LogCaptureFixture) -> None:
    """Fault 27: whoever waits for later work would hang."""

    def fail() -> None:
        raise error

    thread, done = SubmissionThread(), list[int]()
    with caplog.at_level(logging.CRITICAL):
        thread.put(fail)
        thread.put(lambda: done.append(1))
        thread.flush()
    assert done == [1]
    thread.stop()


def test_a_thread_that_has_ended_keeps_nobody_waiting() -> None:
    thread, gate = SubmissionThread(), threading.Event()
    thread.put(lambda: _wait(gate))
    thread.stop(join=False)
    releaser = threading.Timer(0.01, gate.set)
    releaser.start()
    with pytest.raises(BrokenError, match="submission thread"):
        thread.flush()  # behind the end
    with pytest.raises(BrokenError):
        thread.put(gate.set)
    thread.stop()


def test_a_call_that_raises_keeps_no_other_back(caplog: pytest.LogCaptureFixture) -> None:
    """Fault 27."""
    handover, called = Handover(), list[int]()
    handover.post(lambda: called.remove(7))
    handover.post(lambda: called.append(1))
    with caplog.at_level(logging.CRITICAL):
        handover.run()
    assert called == [1]


def _wait(gate: threading.Event) -> None:
    gate.wait()
