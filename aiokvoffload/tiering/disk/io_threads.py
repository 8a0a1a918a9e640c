"""Threads for what blocks: loads before stores. Knows jobs, and nothing of what they read or write."""

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable
from functools import partial

from aiokvoffload.tiering.disk.blocking import start_thread

logger = logging.getLogger(__name__)

Job = Callable[[], None]


class ExitCount:
    """Starts threads, and calls `when_all_have_ended` on the last of them that ends.

    Whatever they all use can be closed there, however late that is (I2). Whoever starts them counts as one of them
    until it says that there are no more.

    Args:
        owner: whose threads they are, for people.
        when_all_have_ended: called once.
    """

    def __init__(self, owner: str, when_all_have_ended: Job) -> None:
        self._owner = owner
        self._left = 1
        self._lock = threading.Lock()
        self._call = when_all_have_ended

    def start(self, name: str, run: Job) -> None:
        """Start one of them.

        Raises:
            TierError: the system gives no more threads.
        """
        with self._lock:
            self._left += 1
        try:
            start_thread(name, partial(self._run, run), owner=self._owner)
        except BaseException:
            self._one_has_ended()
            raise

    def all_are_started(self) -> None:
        """No more will be."""
        self._one_has_ended()

    def _run(self, run: Job) -> None:
        try:
            run()
        finally:
            self._one_has_ended()

    def _one_has_ended(self) -> None:
        with self._lock:
            self._left -= 1
            is_last = not self._left
        if is_last:
            self._call()


class IoThreads:
    """A pool of daemon threads with two queues; a thread takes a store only while no load waits.

    Args:
        num_threads: how many.
    """

    def __init__(self, num_threads: int) -> None:
        self._loads: deque[Job] = deque()
        self._stores: deque[Job] = deque()
        # One token for each job, so that whoever puts one never waits for a lock.
        self._tokens: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._num_threads = num_threads

    def start(self, exits: ExitCount) -> None:
        """Start the threads.

        Raises:
            TierError: the system gives no more; those that are started go on.
        """
        for _ in range(self._num_threads):
            exits.start("aiokvoffload-disk-io", self._run)

    def load(self, job: Job) -> None:
        """Run a job before all stores that wait."""
        self._loads.append(job)
        self._tokens.put(True)

    def store(self, job: Job) -> None:
        """Run a job when no load waits."""
        self._stores.append(job)
        self._tokens.put(True)

    def stop(self) -> None:
        """End the threads, each after the job that it is at; returns at once."""
        for _ in range(self._num_threads):
            self._tokens.put(False)

    @property
    def waiting(self) -> tuple[int, int]:
        """Loads and stores that no thread has taken yet."""
        return len(self._loads), len(self._stores)

    def _run(self) -> None:
        while self._tokens.get():
            job = self._next()
            try:
                job()
            except BaseException:  # whoever waits for later jobs would hang (fault 27)
                logger.exception("a job on an I/O thread failed")
            del job  # an idle thread must not keep the last job's buffers alive

    def _next(self) -> Job:
        try:
            return self._loads.popleft()
        except IndexError:
            return self._stores.popleft()

    def __repr__(self) -> str:
        loads, stores = self.waiting
        return f"IoThreads({self._num_threads} threads, {loads} loads and {stores} stores waiting)"
