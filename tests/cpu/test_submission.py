"""The submission thread: lanes, the order between their steps, and what ends it."""

import logging
import threading
from collections.abc import Iterator

import pytest

from aiokvoffload.copy.engine import Step
from aiokvoffload.cpu.submission import SubmissionThread
from aiokvoffload.errors import BrokenError


class Steps:
    """Work of a few steps that notes its name at each; the first step waits for `gate`."""

    def __init__(self, name: str, notes: list[str], steps: int = 1, gate: threading.Event | None = None) -> None:
        self.name, self.notes, self.steps, self.gate = name, notes, steps, gate
        self.begun, self.may_begin = threading.Event(), True

    def ready(self) -> bool:
        return self.may_begin

    def run(self) -> Iterator[Step]:
        for _ in range(self.steps):
            self.notes.append(self.name)
            self.begun.set()
            if self.gate is not None:
                self.gate.wait()
            yield Step.DONE


class Failing:
    """Work that raises."""

    def __init__(self, error: type[BaseException]) -> None:
        self.error = error

    def ready(self) -> bool:
        return True

    def run(self) -> Iterator[Step]:
        yield Step.DONE
        raise self.error


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt])
def test_work_that_raises_ends_no_thread(error: type[BaseException], caplog: pytest.LogCaptureFixture) -> None:
    """Fault 27: whoever waits for later work would hang."""
    thread, notes = SubmissionThread("test", 1), list[str]()
    with caplog.at_level(logging.CRITICAL):
        thread.put(0, Failing(error))
        thread.put(0, Steps("after", notes))
        thread.flush(0)
    assert notes == ["after"]
    thread.stop()


def test_lane_0_overtakes_between_the_steps_of_a_long_job() -> None:
    thread, notes, gate = SubmissionThread("test", 2), list[str](), threading.Event()
    long = Steps("long", notes, steps=3, gate=gate)
    thread.put(1, long)
    long.begun.wait()
    thread.put(0, Steps("urgent", notes, steps=2))
    gate.set()
    thread.flush(1)
    assert notes == ["long", "urgent", "urgent", "long", "long"]
    thread.stop()


def test_work_that_may_not_begin_yet_keeps_its_lane_waiting_and_no_other() -> None:
    thread, notes = SubmissionThread("test", 2), list[str]()
    first = Steps("first", notes)
    first.may_begin = False
    thread.put(0, first)
    thread.put(0, Steps("second", notes))
    thread.put(1, Steps("other", notes))
    thread.flush(1)
    assert notes == ["other"]
    first.may_begin = True
    thread.flush(0)
    assert notes == ["other", "first", "second"]
    thread.stop()


def test_work_that_waits_for_the_device_is_asked_again() -> None:
    class Waiting:
        looks = 0

        def ready(self) -> bool:
            return True

        def run(self) -> Iterator[Step]:
            while self.looks < 3:
                self.looks += 1
                yield Step.WAITS

    thread, waiting = SubmissionThread("test", 1), Waiting()
    thread.put(0, waiting)
    thread.flush(0)
    assert waiting.looks == 3
    thread.stop()


def test_a_thread_that_has_ended_keeps_nobody_waiting() -> None:
    thread, gate = SubmissionThread("test", 1), threading.Event()
    held = Steps("held", [], gate=gate)
    thread.put(0, held)
    held.begun.wait()
    thread.stop(join=False)
    releaser = threading.Timer(0.01, gate.set)
    releaser.start()
    with pytest.raises(BrokenError, match="submission thread"):
        thread.flush(0)
    with pytest.raises(BrokenError):
        thread.put(0, held)
    thread.stop()


def test_a_stop_lets_everything_put_before_be_done() -> None:
    thread, notes = SubmissionThread("test", 2), list[str]()
    for lane in (0, 1):
        thread.put(lane, Steps(str(lane), notes, steps=2))
    thread.stop()
    assert sorted(notes) == ["0", "0", "1", "1"]
    assert "ended" in repr(thread)
