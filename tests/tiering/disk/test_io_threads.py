"""Threads for what blocks: loads before stores, none lost, none kept waiting by another's exception."""

import threading
from collections.abc import Callable
from functools import partial

import pytest

from aiokvoffload.errors import TierError
from aiokvoffload.tiering.disk.io_threads import ExitCount, IoThreads


def started(num_threads: int, when_all_have_ended: Callable[[], None]) -> IoThreads:
    exits = ExitCount("tests", when_all_have_ended)
    threads = IoThreads(num_threads)
    threads.start(exits)
    exits.all_are_started()
    return threads


def test_a_load_overtakes_stores_that_wait() -> None:
    """Fault 26."""
    ended, gate, done = threading.Event(), threading.Event(), list[str]()
    threads = started(1, ended.set)

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
    threads = started(1, ended.set)
    threads.load(fail)
    threads.load(lambda: done.append(1))
    threads.stop()
    ended.wait()
    assert done == [1]


def test_whatever_all_threads_use_is_closed_by_the_last_one() -> None:
    closed, gates = threading.Event(), [threading.Event() for _ in range(2)]
    exits = ExitCount("tests", closed.set)
    for gate in gates:
        exits.start("gated", partial(_wait, gate))
    exits.all_are_started()
    gates[0].set()
    assert not closed.wait(0.02)
    gates[1].set()
    closed.wait()


def test_what_no_thread_uses_yet_is_not_closed_before_all_are_started() -> None:
    closed = threading.Event()
    exits = ExitCount("tests", closed.set)
    exits.start("short", lambda: None)
    assert not closed.wait(0.02)
    exits.all_are_started()
    closed.wait()


def test_a_thread_that_the_system_does_not_give_is_told_and_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> None:
        raise RuntimeError("can't start new thread")

    closed = threading.Event()
    exits = ExitCount("tier 'x' in /mnt/a", closed.set)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(TierError, match=r"tier 'x' in /mnt/a: thread .* cannot be started: .*; lower DiskConfig"):
            IoThreads(3).start(exits)
    exits.all_are_started()
    assert closed.is_set()


def _wait(gate: threading.Event) -> None:
    gate.wait()
