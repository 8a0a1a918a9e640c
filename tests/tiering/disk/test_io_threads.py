"""Threads for what blocks: loads before stores, none lost, none kept waiting by another's exception."""

import threading

import pytest

from aiokvoffload.tiering.disk.io_threads import ExitCount, IoThreads


def test_a_load_overtakes_stores_that_wait() -> None:
    """Fault 26."""
    ended, gate, done = threading.Event(), threading.Event(), list[str]()
    threads = IoThreads(1, ExitCount(1, ended.set))

    def store_slowly() -> None:
        gate.wait()
        done.append("store 1")

    threads.store(store_slowly)
    threads.store(lambda: done.append("store 2"))
    threads.load(lambda: done.append("load"))
    gate.set()
    threads.stop()
    ended.wait()
    assert done[-1] == "store 2"
    assert "load" in done[:2]


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt])
def test_a_job_that_raises_ends_no_thread(error: type[BaseException], caplog: pytest.LogCaptureFixture) -> None:
    """Fault 27."""

    def fail() -> None:
        raise error

    ended, done = threading.Event(), list[int]()
    threads = IoThreads(1, ExitCount(1, ended.set))
    threads.load(fail)
    threads.load(lambda: done.append(1))
    threads.stop()
    ended.wait()
    assert done == [1]


def test_whatever_all_threads_use_is_closed_by_the_last_one() -> None:
    closed: list[bool] = []
    exits = ExitCount(3, lambda: closed.append(True))
    for expected in ([], [], [True]):
        exits.one_has_ended()
        assert closed == expected
