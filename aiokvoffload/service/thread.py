"""The service on an event loop in a thread of its own, for engines whose step loop is a plain thread.

Knows threads and hops: one each way for a step, however many calls it has. What the calls do is the service's.
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from concurrent.futures import CancelledError, Future
from types import TracebackType
from typing import Any, Self, TypeVar

from aiokvoffload.base import CanonicalKVCaches, Event, OffloadingSpec, Stream
from aiokvoffload.config import MAX_SECONDS, shown
from aiokvoffload.device import Device
from aiokvoffload.errors import ArgumentError, BrokenError, ClosedError, InternalError, OffloadError
from aiokvoffload.service.handle import Handle
from aiokvoffload.service.request import Request
from aiokvoffload.service.service import OffloadingService
from aiokvoffload.service.thread_calls import (
    CallOutcome,
    CallStage,
    FinishCall,
    LoadCall,
    LookupCall,
    StoreCall,
    ThreadCall,
    checked_calls,
)
from aiokvoffload.service.thread_request import OpenRequest

logger = logging.getLogger(__name__)

T = TypeVar("T")

_CLOSED_MEANWHILE = "the service was closed by another thread meanwhile"


def open_in_thread(
    spec: OffloadingSpec,
    kv_caches: CanonicalKVCaches | Sequence[CanonicalKVCaches],
    *,
    step_timeout_s: float = 30.0,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
) -> "OffloadingThread":
    """The service of `spec` on a loop thread of its own, to be entered with `with`.

    Args:
        spec: in awaited mode.
        kv_caches: as for `spec.open`.
        step_timeout_s: how long a step waits for the loop before it raises `BrokenError`.
        loop_factory: makes the loop, `uvloop.new_event_loop` say; by default asyncio's.

    Raises:
        ArgumentError: the time-out is not above 0, or above `MAX_SECONDS`. What `spec.open` raises, entering raises.
    """
    return OffloadingThread(lambda: spec.open(kv_caches), step_timeout_s=step_timeout_s, loop_factory=loop_factory)


class OffloadingThread:
    """A service for one engine thread, which calls `step` once in each of its steps.

    Args:
        open_service: makes the service.
        step_timeout_s: how long a step waits for the loop.
        loop_factory: makes the loop.
    """

    def __init__(
        self,
        open_service: Callable[[], Any],
        *,
        step_timeout_s: float,
        loop_factory: Callable[[], asyncio.AbstractEventLoop] | None,
    ) -> None:
        if not isinstance(step_timeout_s, int | float) or not 0 < step_timeout_s <= MAX_SECONDS:
            raise ArgumentError(
                f"step_timeout_s must be a number above 0 and at most {MAX_SECONDS}, got {shown(step_timeout_s)}"
            )
        self._open_service = open_service
        self._step_timeout_s = step_timeout_s
        self._loop_factory = loop_factory
        self._thread = threading.Thread(target=self._run_loop, name="aiokvoffload-loop", daemon=True)
        self._opened: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event, OffloadingService]] = Future()
        self._ended: Future[None] = Future()
        self._answers: set[Future[Any]] = set()
        self._ended.add_done_callback(lambda _: self._answer_nobody())
        # These belong to the loop's thread.
        self._requests: dict[str, OpenRequest] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._outcomes: list[CallOutcome] = []
        self._steps = self._calls = 0

    @property
    def device(self) -> Device:
        """The device that the copies run on.

        Raises:
            ClosedError: it is not open.
        """
        return self._require_open("device")[2].device

    def step(self, calls: Iterable[ThreadCall] = (), *, after: Stream | Event | None = None) -> list[CallOutcome]:
        """Hand over all calls of one engine step, and take what has come to a stage since the last one.

        A request is opened by its first call. Calls of one request keep their order.

        Args:
            calls: in the order in which they are meant.
            after: what must have ended before loads overwrite and stores read; by default the calling thread's current
                stream, as it is now.

        Returns:
            The answers to this step's lookups and refused calls, and whatever else has happened.

        Raises:
            ArgumentError: one of them is no call, or its `req_id` no text; none has been made.
            ClosedError: it is not open.
            BrokenError: the loop does not answer, or its thread has died.
        """
        loop, _, service = self._require_open("step")
        calls = checked_calls(calls)
        # Recorded here: on the loop's thread the current stream would be another one.
        copies = any(isinstance(call, LoadCall | StoreCall) for call in calls)
        start = service.device.record(after) if copies else None
        return self._on_loop(loop, self._take_step(service, calls, start))

    def run(self, function: Callable[[OffloadingService], Awaitable[T]]) -> T:
        """Await `function(service)` on the loop's thread: a reset, statistics, a subscriber's next event.

        What it raises is raised here, time-outs of its own too; a cancellation of its own is
        `concurrent.futures.CancelledError`, as in every thread without a loop.

        Raises:
            ClosedError: it is not open.
            BrokenError: the loop does not answer in time, or its thread has died.
        """
        loop, stop, service = self._require_open("run")
        # Apart from the answer: a time-out or a cancellation of the function's own is none of the loop's.
        outcome: Future[T] = Future()

        async def call() -> None:
            try:
                outcome.set_result(await function(service))
            except asyncio.CancelledError:
                if stop.is_set():  # the loop ends, with all that still runs there
                    raise
                outcome.cancel()
            except Exception as error:  # noqa: BLE001 - raised on the calling thread
                outcome.set_exception(error)

        self._on_loop(loop, call())
        return outcome.result()

    def close(self) -> None:
        """Abort what is open, close the service, end the thread; repeating it does nothing more.

        Raises:
            AbandonedError: as for `OffloadingService.aclose`.
        """
        if self._thread.ident is None:
            return
        if self._opened.done() and self._opened.exception() is None and not self._ended.done():
            loop, stop, _ = self._opened.result()
            loop.call_soon_threadsafe(stop.set)
        self._thread.join()
        self._ended.result()

    def __enter__(self) -> Self:
        if self._thread.ident is not None:
            raise ClosedError("a service thread is opened once")
        self._thread.start()
        self._opened.result()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _on_loop(self, loop: asyncio.AbstractEventLoop, call: Coroutine[Any, Any, T]) -> T:
        try:
            answer = asyncio.run_coroutine_threadsafe(call, loop)
        except RuntimeError as error:  # the loop is closed
            call.close()
            raise ClosedError(_CLOSED_MEANWHILE) from error
        self._answers.add(answer)
        if self._ended.done():
            self._answer_nobody()
        try:
            return answer.result(self._step_timeout_s)
        except TimeoutError as error:
            answer.cancel()
            raise BrokenError(f"the loop's thread did not answer within {self._step_timeout_s} s") from error
        except CancelledError as error:
            call.close()
            raise ClosedError(_CLOSED_MEANWHILE) from error
        finally:
            self._answers.discard(answer)

    def _answer_nobody(self) -> None:
        """The loop is gone, and with it who would answer."""
        for answer in (*self._answers,):
            answer.cancel()

    def _require_open(self, call: str) -> tuple[asyncio.AbstractEventLoop, asyncio.Event, OffloadingService]:
        if not self._opened.done() or self._ended.done():
            raise ClosedError(f"{call}: the service is not open; use `with open_in_thread(spec, kv_caches) as offload`")
        return self._opened.result()

    def _run_loop(self) -> None:
        try:
            with asyncio.Runner(loop_factory=self._loop_factory) as runner:
                runner.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - raised where the engine's thread opens or closes
            if not self._opened.done():
                self._opened.set_exception(error)
                self._ended.set_result(None)
            else:
                self._ended.set_exception(error)
        else:
            self._ended.set_result(None)

    async def _serve(self) -> None:
        stop = asyncio.Event()
        async with self._open_service() as service:
            self._opened.set_result((asyncio.get_running_loop(), stop, service))
            await stop.wait()
            for request in self._requests.values():
                request.leave(abort=True)
            # Closing resolves what they wait for.
            await service.aclose()
            while self._tasks:
                await asyncio.wait(self._tasks)

    async def _take_step(
        self, service: OffloadingService, calls: Sequence[ThreadCall], start: Event | None
    ) -> list[CallOutcome]:
        self._steps += 1
        self._calls += len(calls)
        for call in calls:
            try:
                await self._begin(service, call, start)
            except OffloadError as error:
                self._tell(call, error=error)
            except Exception as error:  # the step's other calls must be made and told all the same
                logger.exception("a call of request %r failed", call.req_id)
                self._tell(call, error=InternalError(f"a {type(call).__name__} failed: {error!r}"))
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    async def _begin(self, service: OffloadingService, call: ThreadCall, start: Event | None) -> None:
        if isinstance(call, FinishCall):
            self._finish(call)
            return
        door = await self._door(service, call.req_id)
        if isinstance(call, LookupCall):
            self._tell(call, door.lookup(call.keys))
        elif isinstance(call, LoadCall):
            self._start(self._watch(call, door.load(call.keys, call.blocks, after=start)))
        else:
            store = door.store(call.keys, call.blocks, after=start, protect_source=False)
            self._start(self._watch_store(call, store))

    async def _door(self, service: OffloadingService, req_id: str) -> Request:
        if (request := self._requests.get(req_id)) is None:
            request = OpenRequest()
            task = self._start(request.run(service.request(req_id)))
            self._requests[req_id] = request
            task.add_done_callback(lambda _: self._forget(req_id, request))
        return await asyncio.shield(request.opened)

    def _forget(self, req_id: str, request: OpenRequest) -> None:
        if self._requests.get(req_id) is request:
            del self._requests[req_id]

    def _finish(self, call: FinishCall) -> None:
        if (request := self._requests.pop(call.req_id, None)) is None:
            raise ArgumentError(f"req_id {call.req_id!r} is not that of an open request")
        request.left.add_done_callback(lambda left: self._tell(call, error=left.result()))
        request.leave(abort=call.abort)

    async def _watch(self, call: ThreadCall, handle: Handle[Any]) -> None:
        try:
            self._tell(call, await handle)
        except OffloadError as error:
            self._tell(call, error=error)

    async def _watch_store(self, call: StoreCall, store: Handle[Any]) -> None:
        # Awaited in turn: both may be true by the time that this begins, and the order is promised.
        with contextlib.suppress(OffloadError):  # the result tells
            await store.released
            self._tell(call, stage=CallStage.RELEASED)
        await self._watch(call, store)

    def _tell(
        self,
        call: ThreadCall,
        result: Any = None,
        *,
        stage: CallStage = CallStage.ENDED,
        error: OffloadError | None = None,
    ) -> None:
        self._outcomes.append(CallOutcome(call, stage, result, error))

    def _start(self, work: Any) -> "asyncio.Task[None]":
        task: asyncio.Task[None] = asyncio.create_task(work, name="aiokvoffload-thread-call")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def __repr__(self) -> str:
        state = "new" if not self._opened.done() else "closed" if self._ended.done() else "open"
        return f"<OffloadingThread {state}, {len(self._requests)} requests, {self._calls} calls in {self._steps} steps>"
