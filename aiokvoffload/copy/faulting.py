"""Giving memory its pages with several threads. Knows addresses and threads; knows nothing of slots or devices."""

import os
import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import TracebackType
from typing import Protocol, Self, TypeVar

from aiokvoffload.copy.libc import populate

FAULT_THREADS = 8
"""More are no faster: they wait for each other inside the kernel."""
STEP_BYTES = 4 << 20
"""Faulted in one call, some milliseconds: for so long nobody else in the process, the loop included, can map or unmap
memory (I10), and for so long a stop may have to wait."""


class MemoryRange(Protocol):
    """Something that has an address and a size."""

    @property
    def address(self) -> int:
        """Of the first byte."""
        ...

    @property
    def size_bytes(self) -> int:
        """How many bytes."""
        ...


_Range = TypeVar("_Range", bound=MemoryRange)


class PageFaulter:
    """Threads that fault pages in; to be used with `with`, which ends them. They start with the first large range.

    Args:
        num_threads: how many.
        fault: `fault(address, size_bytes)` gives pages, without holding the GIL; by default `populate`.
        stopping: once set, nothing more is faulted.
    """

    def __init__(
        self,
        num_threads: int = FAULT_THREADS,
        *,
        fault: Callable[[int, int], None] | None = None,
        stopping: threading.Event | None = None,
    ) -> None:
        self._num_threads = min(num_threads, os.cpu_count() or 1)
        self._fault = fault or populate
        self._stopping = stopping or threading.Event()
        self._threads: ThreadPoolExecutor | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._threads is not None:
            self._threads.shutdown()

    def fault_in_turn(self, ranges: Iterable[_Range]) -> Generator[_Range, None, None]:
        """Yield each range once it has its pages, while the next one is being faulted.

        Ends early when it is stopped. Whatever is being faulted when the caller stops asking is waited for, so that
        the memory may be unmapped then: close the generator.

        Raises:
            OSError: there is no memory left.
        """
        running: list[Future[None]] = []
        previous: _Range | None = None
        try:
            for each in ranges:
                if previous is not None:
                    self._finish(previous, running)
                running, ahead = self._begin(each), previous
                previous = each
                if self._stopping.is_set():
                    return
                if ahead is not None:
                    yield ahead
            if previous is not None and not self._stopping.is_set():
                self._finish(previous, running)
                if not self._stopping.is_set():
                    yield previous
        finally:
            if running:
                wait(running)

    def _begin(self, memory: MemoryRange) -> list[Future[None]]:
        address, size_bytes = memory.address, memory.size_bytes
        if size_bytes <= STEP_BYTES:  # is no work for several, and then a thread would cost more than it brings
            return []
        offsets = iter(range(0, size_bytes, STEP_BYTES))  # shared: each thread takes the next one

        def fault_steps() -> None:
            for offset in offsets:
                if self._stopping.is_set():
                    return
                self._fault(address + offset, min(STEP_BYTES, size_bytes - offset))

        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._num_threads, thread_name_prefix="aiokvoffload-fault")
        return [self._threads.submit(fault_steps) for _ in range(min(self._num_threads, -(-size_bytes // STEP_BYTES)))]

    def _finish(self, memory: MemoryRange, running: Sequence[Future[None]]) -> None:
        if not running:
            self._fault(memory.address, memory.size_bytes)
        for each in running:
            each.result()

    def __repr__(self) -> str:
        return f"PageFaulter({self._num_threads} threads)"
