"""Continuous batching: which step the model computes next.

Knows queues and turns; knows nothing of keys, of copies, or of what a token means. Between two steps it takes whoever
is there: a piece of one prompt, then a token for each answer, so that neither waits for all of the other.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from aiokvoffload.base import Stream
from aiokvoffload.cli.demo.model import PagedModel, Row
from aiokvoffload.cli.demo.pages import Lease
from aiokvoffload.device import Device
from aiokvoffload.errors import ClosedError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class BatcherStatistics:
    """Steps computed so far, rows of all decode steps, and who waits for either."""

    prefill_steps: int
    decode_steps: int
    decode_rows: int
    waiting: int


@dataclass(frozen=True, slots=True, eq=False)
class _Wanted:
    """One sequence's next step. Its blocks are held until the step has ended, whoever waits for it or does not."""

    lease: Lease
    row: Row
    tokens: list[int]
    width: int
    chosen: "asyncio.Future[int]"


class Batcher:
    """Runs the model, one step after the other, on a stream of its own.

    Args:
        model: to be run; nobody else touches it.
        device: where it runs.
        max_rows: answers that one decode step continues, at most.
    """

    def __init__(self, model: PagedModel, device: Device, *, max_rows: int) -> None:
        self.stream: Stream = device.create_stream()
        self._model = model
        self._device = device
        self._max_rows = max_rows
        self._prefills: deque[_Wanted] = deque()
        self._decodes: deque[_Wanted] = deque()
        self._changed = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="aiokvoffload-model")
        self._prefill_steps = self._decode_steps = self._decode_row_count = 0

    async def prefill(self, lease: Lease, tokens: list[int], *, start: int, width: int) -> int:
        """Compute a piece of a prompt, padded to `width`; returns the token that follows."""
        return await self._queue(self._prefills, lease, Row(0, start, lease.table), tokens=tokens, width=width)

    async def decode(self, lease: Lease, token: int, position: int) -> int:
        """Compute `token`; returns the one that follows."""
        return await self._queue(self._decodes, lease, Row(token, position, lease.table))

    async def _queue(
        self, queue: deque[_Wanted], lease: Lease, row: Row, *, tokens: list[int] | None = None, width: int = 1
    ) -> int:
        wanted = _Wanted(lease, row, tokens or [], width, asyncio.get_running_loop().create_future())
        queue.append(wanted)
        self._changed.set()
        return await wanted.chosen

    async def run(self) -> None:
        """Compute what is asked for, until cancelled; a step that has begun is waited for."""
        try:
            while True:
                await self._changed.wait()
                self._changed.clear()
                while self._prefills or self._decodes:
                    await self._step(self._prefills, 1, self._prefill)
                    await self._step(self._decodes, self._max_rows, self._decode)
        finally:
            for wanted in (*self._prefills, *self._decodes):
                if not wanted.chosen.done():
                    wanted.chosen.set_exception(ClosedError("the engine was closed before the request was finished"))

    async def _step(self, queue: deque[_Wanted], limit: int, compute: Callable[[list[_Wanted]], list[int]]) -> None:
        chosen: list[_Wanted] = []
        while queue and len(chosen) < limit:
            if not (wanted := queue.popleft()).chosen.done():  # else its request was aborted
                wanted.lease.hold()
                chosen.append(wanted)
        if not chosen:
            return
        step = asyncio.get_running_loop().run_in_executor(self._thread, self._in_stream, partial(compute, chosen))
        try:
            tokens = await asyncio.shield(step)
        except asyncio.CancelledError:
            await asyncio.wait([step])  # what computes on the device is not cancelled, so its blocks are not free
            raise
        except Exception as error:  # noqa: BLE001 - raised where each request waits for the step
            for wanted in chosen:
                _settle(wanted.chosen, error)
        else:
            for wanted, token in zip(chosen, tokens, strict=True):
                _settle(wanted.chosen, token)
        finally:
            for wanted in chosen:
                wanted.lease.release()

    def _prefill(self, chosen: list[_Wanted]) -> list[int]:
        self._prefill_steps += 1
        (wanted,) = chosen
        start, width = wanted.row.position, wanted.width
        return [self._model.prefill(wanted.tokens, wanted.row.block_ids, start=start, width=width)]

    def _decode(self, chosen: list[_Wanted]) -> list[int]:
        self._decode_steps += 1
        self._decode_row_count += len(chosen)
        return self._model.decode([wanted.row for wanted in chosen])

    def _in_stream(self, compute: Callable[[], T]) -> T:
        """On the model's thread: put the step into the stream and wait for its end."""
        result: Future[T] = Future()

        def run() -> None:
            try:
                result.set_result(compute())
            except Exception as error:  # noqa: BLE001 - raised below; here it would break the host's stream for good
                result.set_exception(error)

        self._device.enqueue(self.stream, run)
        return result.result()

    async def aclose(self) -> None:
        """Let go of the thread and the stream; nothing runs any more."""
        await asyncio.to_thread(self._thread.shutdown)
        self._device.destroy_stream(self.stream)

    def statistics(self) -> BatcherStatistics:
        """Counts so far."""
        waiting = len(self._prefills) + len(self._decodes)
        return BatcherStatistics(self._prefill_steps, self._decode_steps, self._decode_row_count, waiting)

    def __repr__(self) -> str:
        return f"<Batcher {len(self._prefills)} prompts and {len(self._decodes)} answers wait>"


def _settle(chosen: "asyncio.Future[int]", outcome: int | Exception) -> None:
    if chosen.done():  # its request was aborted
        return
    if isinstance(outcome, Exception):
        chosen.set_exception(outcome)
    else:
        chosen.set_result(outcome)
