"""Every test runs on asyncio and on uvloop, may not block the loop, and leaves nothing behind."""

import asyncio
import contextlib
import gc
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
import torch
import uvloop
from blockbuster import blockbuster_ctx
from hypothesis import settings

from aiokvoffload.copy.memory_use import memory_use
from tests.forked import Forks

if not torch.cuda.is_available():
    # Read by Triton when the kernel's module is imported, which nothing has done by now.
    os.environ.setdefault("TRITON_INTERPRET", "1")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Whoever was started in the background by a script has it so, and passes it on: no Ctrl-C would reach any program.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# As the command does: on few cores the threads of a pool wait for each other, and the loop for them.
torch.set_num_threads(1)

# How long an example takes is the machine's business, and that of whatever else runs on it.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")

MOST_WORKERS = 8
"""Each takes up to a gigabyte, and with so many the longest test is as long as a share of the others."""
SETTLE_S = 5.0
"""How long leftovers may take to go: a daemon thread that was told to end needs a moment to be gone."""


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """As many as there are cores for the whole suite; what somebody picks out takes less time than their imports."""
    is_picked = config.args != config.getini("testpaths") or config.option.keyword or config.option.markexpr
    return 0 if is_picked else min(len(os.sched_getaffinity(0)), MOST_WORKERS)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # What is loaded by now stays: without torch and the tests themselves, the collection after each test is quick.
    gc.collect()
    gc.freeze()
    if torch.cuda.is_available():
        torch.zeros(1, device="cuda")  # opens the descriptors that CUDA keeps for the life of the process
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


def pytest_collection_finish(session: pytest.Session) -> None:
    is_worker = hasattr(session.config, "workerinput")  # of several: all cores have work, and not each will need it
    if not is_worker and any("forks" in getattr(item, "fixturenames", ()) for item in session.items):
        Forks()  # it imports for seconds: beside the first tests, and not while one waits


def pytest_unconfigure() -> None:
    gc.unfreeze()  # Triton looks at exit for what was never collected


@pytest.fixture(scope="module", autouse=True)
def little_to_collect() -> Iterator[None]:
    """Pytest's reports and what is imported late would make the collection after a test slower than most tests."""
    yield
    gc.collect()
    gc.freeze()


def open_descriptors() -> set[str]:
    """Number and target of every open descriptor but those of the event loop's own.

    These are sockets, and `/dev/null`, which libuv keeps as a spare from a loop's first listening to its end. What
    listens says in its own tests that nothing answers any more.
    """
    names = set()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the descriptor that lists this very folder
            names.add(f"{number}:{os.readlink(f'/proc/self/fd/{number}')}")
    return {name for name in names if ":socket:" not in name and not name.endswith(":/dev/null")}


def library_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("aiokvoffload")}


@pytest.fixture(scope="session", autouse=True)
def process_has_its_signal_pipe() -> None:
    """The first loop of libuv in a process opens a pipe for signals and keeps it: nothing that a test leaves."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.sleep(0))


@pytest.fixture(scope="session")
def forks() -> Forks:
    return Forks()


@pytest.fixture(autouse=True)
def leaves_nothing(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a test after which a task, thread, descriptor, host or GPU byte of the library is left over."""
    is_async = asyncio.iscoroutinefunction(getattr(request, "function", None))
    threads, mapped = library_threads(), memory_use()
    descriptors = set() if is_async else open_descriptors()
    if torch.cuda.is_available():
        # Here and not at the end, where pytest still holds what the fixtures made.
        gc.collect()
        torch._C._cuda_clearCublasWorkspaces()  # which a matrix product leaves for each stream
        assert not torch.cuda.memory_allocated(), "GPU bytes left over by an earlier test"
    if is_async:
        request.getfixturevalue("no_task_left")
        request.getfixturevalue("loop_stays_free")
    yield
    gc.collect()
    for thread in library_threads() - threads:
        thread.join(SETTLE_S)
    assert not library_threads() - threads, "threads left over"
    left = memory_use()
    assert (left.mapped_bytes, left.pinned_bytes) == (mapped.mapped_bytes, mapped.pinned_bytes), "CPU memory left over"
    if not is_async:  # the loop of an async test is closed later, with descriptors of its own
        assert not open_descriptors() - descriptors, "descriptors left over"


@pytest.fixture
async def no_task_left() -> AsyncIterator[None]:
    before = asyncio.all_tasks()
    descriptors = open_descriptors()
    yield
    left = {task for task in asyncio.all_tasks() - before if task is not asyncio.current_task()}
    assert not left, f"tasks left over: {left}"
    assert not open_descriptors() - descriptors, "descriptors left over"


@pytest.fixture
async def loop_stays_free() -> AsyncIterator[None]:
    """A call from the library that blocks the loop raises `BlockingError` inside the test."""
    with blockbuster_ctx("aiokvoffload"):
        yield
