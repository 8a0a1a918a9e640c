"""The front door: the manager and the workers behind one async service."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Self

from aiokvoffload.base import PoolFile, PoolGrowth, ReqContext
from aiokvoffload.config import GroupConfig
from aiokvoffload.cpu.common import CPU_MEDIUM, CPU_TIER
from aiokvoffload.device import Device
from aiokvoffload.errors import AbandonedError, ArgumentError, BrokenError, ClosedError, InternalError
from aiokvoffload.events import EventBus
from aiokvoffload.histogram import NO_VALUES
from aiokvoffload.service.backend import Backend, LiveFlow
from aiokvoffload.service.closing import close_unused, close_workers, shielded, undeterred
from aiokvoffload.service.depth import Depth
from aiokvoffload.service.growth_watch import GrowthWatch
from aiokvoffload.service.loop_watch import LoopWatch
from aiokvoffload.service.opening import build_on_thread
from aiokvoffload.service.parts import Parts, ServiceLimits, TierParts
from aiokvoffload.service.request import Request
from aiokvoffload.service.results import ResetResult, ServiceStatistics


class OffloadingService:
    """Offloading for one engine on the running loop. Open it with `async with`.

    Args:
        build: makes the parts; called once, on a thread, since it may pin a lot of memory.
        groups: the KV-cache groups.
        limits: bounds of everything that could grow.
    """

    def __init__(self, build: Callable[[], Parts], *, groups: Sequence[GroupConfig], limits: ServiceLimits) -> None:
        self._build = build
        self._groups = tuple(groups)
        self._limits = limits
        # The microsecond: a subscriber that outlives this process never meets the same number again.
        self.events = EventBus(
            limits.max_pending_events,
            first_sequence=time.time_ns() // 1000,
            block_timeout_s=limits.event_block_timeout_s,
            max_metadata=limits.max_event_metadata,
        )
        self._parts: Parts | None = None
        self._backend: Backend | None = None
        self._growth: GrowthWatch | None = None
        self._loop_watch: LoopWatch | None = None
        self._depth: Depth | None = None
        self._requests: dict[str, Request] = {}
        self._ended_loads = self._ended_stores = 0
        self._entered = False
        self._closed = False
        self._pump_task: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None

    @property
    def device(self) -> Device:
        """The device that the workers' copies run on: a source of streams for code that runs anywhere.

        Raises:
            ClosedError: the service is not open, or has no device of its own.
        """
        if self._closed or self._parts is None or self._parts.device is None:
            raise ClosedError("device: the service is not open, or was built without a device of its own")
        return self._parts.device

    @property
    def closed(self) -> bool:
        """Whether it is closed, or being closed."""
        return self._closed

    def request(self, req_id: str) -> Request:
        """A request to be entered with `async with`.

        Raises:
            ArgumentError: a request of that id is open.
            ClosedError: the service is not open.
        """
        backend = self._require_open("request")
        if not isinstance(req_id, str) or not req_id:
            raise ArgumentError(f"req_id must be a non-empty string, got {req_id!r}")
        self._require_unused(req_id)
        return Request(
            backend,
            ReqContext(req_id),
            on_begin=self._request_begun,
            on_end=self._request_ended,
        )

    async def reset(self, *, tiers: Collection[str] | None = None) -> ResetResult:
        """Forget everything that is cached, because the model's weights changed, say.

        Loads and stores that run go on to their end (I2), but their results say that nothing was served or stored.
        From the call on nothing is served that was there before, though clearing a lower tier may take time.

        Args:
            tiers: names of those to clear, `"cpu"` the primary one; by default all. Chunks that only a tier that is not
                named has will still be served.

        Raises:
            ArgumentError: there is no such tier; nothing has been cleared.
            ClosedError: the service is not open.
        """
        backend, depth = self._require_open("reset"), self._depth
        lower = depth.chain.names if depth is not None else ()
        if isinstance(tiers, str) or not isinstance(tiers, Iterable | None):  # a text is a collection of its letters
            raise ArgumentError(f"tiers must be a set of names, such as {{'cpu'}}, got {tiers!r}")
        names = (CPU_TIER, *lower) if tiers is None else tuple(tiers)
        if unknown := [name for name in names if name not in (CPU_TIER, *lower)]:
            raise ArgumentError(f"tiers must be among {[CPU_TIER, *lower]}, got {unknown[0]!r}")
        resets = [] if depth is None else [name for name in lower if name in names]
        cleared: dict[str, int | None] = {}
        # No await before all of this: whatever is asked for next must find nothing old in any tier.
        voided: deque[LiveFlow] = deque()
        if CPU_TIER in names:
            cleared[CPU_TIER], voided = self._reset_primary(backend)
        if depth is not None and resets:
            cleared |= await depth.chain.reset(resets)
        await backend.stop(voided)
        return ResetResult(
            tuple((name, count) for name, count in cleared.items() if count is not None),
            tuple(name for name, count in cleared.items() if count is None),
        )

    def _reset_primary(self, backend: Backend) -> tuple[int, deque[LiveFlow]]:
        """How many keys were cleared, and what is to be stopped."""
        cleared = backend.manager.reset_cache()
        backend.running_stores.clear()
        voided = backend.void_flows()
        if self._depth is not None:
            self._depth.chain.refuse_cascades()
        backend.room_changed()
        backend.publish()
        return cleared, voided

    async def wait_grown(self) -> PoolGrowth:
        """Wait until all memory for slots is ready, or no more will be: `error` says so then.

        Nobody needs to wait: the service runs with the slots that there are. The first ones are there when it is open.

        Returns:
            What all workers have.

        Raises:
            ClosedError: the service is not open, or was closed meanwhile.
        """
        self._require_open("wait_grown")
        if self._growth is None:
            raise InternalError("an open service does not watch its memory grow")
        return await self._growth.wait()

    def pool_files(self) -> tuple[tuple[PoolFile, ...], ...]:
        """For each worker, in rank order, one file for each pool; nothing unless slots lie in `HostMemory.MEMFD`.

        Raises:
            ClosedError: the service is not open.
        """
        backend = self._require_open("pool_files")
        return tuple(tuple(worker.pool_files()) for worker in backend.workers)

    def statistics(self) -> ServiceStatistics:
        """A snapshot of counts, down to the manager and the workers.

        Raises:
            ClosedError: the service was never opened.
        """
        if self._backend is None:
            raise ClosedError("statistics: the service was never opened")
        backend, live = self._backend, self._requests.values()
        depth, watch = self._depth, self._loop_watch
        return ServiceStatistics(
            requests=len(self._requests),
            loads=self._ended_loads + sum(request.loads for request in live),
            stores=self._ended_stores + sum(request.stores for request in live),
            jobs_in_flight=backend.jobs_in_flight,
            waiting_flows=backend.pump.waiting_flows,
            manager=backend.manager.statistics(),
            workers=tuple(worker.statistics() for worker in backend.workers),
            events=self.events.statistics(),
            tiers=() if depth is None else depth.statistics(),
            is_open=not backend.closing and backend.broken is None,
            keys=backend.keys.statistics(),
            loop_blocked=NO_VALUES if watch is None else watch.statistics(),
            waiting_promotions=0 if depth is None else depth.waiting_promotions,
            room_timeouts=0 if depth is None else depth.room_timeouts,
        )

    def check_integrity(self) -> None:
        """Check every owner of slots (I7).

        Raises:
            InternalError: an invariant does not hold.
        """
        if self._backend is not None:
            self._backend.manager.check_integrity()

    async def __aenter__(self) -> Self:
        if self._entered or self._closed:
            raise ClosedError("a service is opened once")
        self._entered = True
        parts = await build_on_thread(self._build)
        if self.closed:
            await shielded(asyncio.to_thread(parts.close))
            raise ClosedError("the service was closed while it was being opened")
        for worker in parts.workers:
            worker.bind()
        backend = Backend(
            manager=parts.manager,
            workers=parts.workers,
            bus=self.events,
            groups=self._groups,
            max_run_keys=self._limits.max_run_keys,
            max_run_fragments=self._limits.max_run_fragments,
            max_jobs_in_flight=self._limits.max_jobs_in_flight,
            max_waiting_transfers=self._limits.max_waiting_transfers,
        )
        self._begin_events(backend, parts)
        if parts.tiers is not None:
            self._depth = backend.depth = await self._open_tiers(backend, parts, parts.tiers)
        self._parts, self._backend = parts, backend
        self._growth = GrowthWatch(parts.manager, parts.workers, on_more=backend.room_changed)
        self._loop_watch = LoopWatch()
        self._pump_task = asyncio.create_task(self._backend.pump.run(), name="aiokvoffload-pump")
        self._pump_task.add_done_callback(self._pump_ended)
        return self

    def _begin_events(self, backend: Backend, parts: Parts) -> None:
        tiers = () if parts.tiers is None else parts.tiers.tiers
        self.events.begin_tiers([(CPU_MEDIUM, CPU_TIER), *((tier.medium, tier.name) for tier, _ in tiers)])
        self.events.use_source(backend.resident_parts)

    async def _open_tiers(self, backend: Backend, parts: Parts, tiers: TierParts) -> Depth:
        depth = Depth(backend, tiers)
        try:
            await depth.chain.open()
        except BaseException:
            await shielded(close_unused(parts))
            raise
        if self.closed:
            await shielded(close_unused(parts, depth.chain))
            raise ClosedError("the service was closed while it was being opened")
        return depth

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Accept nothing more, wait for every copy, free the memory. Repeating it waits for the same end.

        Whoever is cancelled while waiting here stops waiting; the close goes on.

        Raises:
            AbandonedError: copies had not ended when the time-out passed; their memory stays mapped for good (I2).
            ModeError: this is not the thread of the service's loop; nothing has been closed.
        """
        if self._backend is not None:
            self._backend.require_home("aclose")
        self._closed = True
        if self._parts is None or self._backend is None:
            return
        while True:
            if self._closing is None or self._closing.cancelled():  # the latter before it began
                coroutine = self._close(self._parts, self._backend)
                self._closing = asyncio.create_task(coroutine, name="aiokvoffload-close")
            closing = self._closing
            await asyncio.wait([closing])
            if not closing.cancelled():
                closing.result()
                return

    async def _close(self, parts: Parts, backend: Backend) -> None:
        """Step by step, each to its end: whoever ends a loop cancels this task too, and waits for it."""
        backend.closing = True
        if self._growth is not None:
            self._growth.close()
        if self._loop_watch is not None:
            self._loop_watch.close()
        await undeterred(backend.stop_flows)
        left = await undeterred(partial(self._close_tiers, parts))
        errors = await undeterred(partial(close_workers, parts.workers))
        await undeterred(partial(self._end_pump, backend))
        backend.publish()
        self.events.close()
        if errors:
            requests = sorted({flow.req_id for flow in backend.flows})
            error = AbandonedError(f"{'; '.join([*map(str, errors), *left])}; left by requests {requests}")
            for flow in tuple(backend.flows):
                flow.abandon(error)
            raise error from errors[0]
        if parts.device is not None:
            await undeterred(partial(asyncio.to_thread, parts.device.close))
        if left:
            raise AbandonedError(f"the close left behind: {'; '.join(left)}")

    async def _close_tiers(self, parts: Parts) -> list[str]:
        """Before the workers unmap what the tiers read and write; returns what is left of them."""
        if self._depth is None or parts.tiers is None:
            return []
        left = await self._depth.chain.aclose(parts.tiers.close_timeout_s)
        if self._depth.chain.unreturned:
            for worker in parts.workers:
                worker.keep_memory()
        return left

    def _pump_ended(self, task: asyncio.Task[None]) -> None:
        """Without it nothing would ever be submitted: whoever waits for that must hear of it (I1)."""
        if self._backend is None or self._backend.closing:
            return
        reason = "it was cancelled" if task.cancelled() else repr(task.exception())
        self._backend.break_down(BrokenError(f"the task that submits transfers has ended: {reason}"))

    async def _end_pump(self, backend: Backend) -> None:
        if self._pump_task is not None:
            self._pump_task.cancel()
            await asyncio.wait([self._pump_task])
        backend.pump.forget()

    def _request_begun(self, request: Request) -> None:
        # Asked again: the request waited for its turn since it was made.
        self._require_open("request")
        self._require_unused(request.req_id)
        self._requests[request.req_id] = request

    def _request_ended(self, request: Request) -> None:
        del self._requests[request.req_id]
        self._ended_loads += request.loads
        self._ended_stores += request.stores

    def _require_unused(self, req_id: str) -> None:
        if req_id in self._requests:
            raise ArgumentError(f"req_id {req_id!r} is in use by an open request")

    def _require_open(self, call: str) -> Backend:
        if self._backend is None:
            raise ClosedError(f"{call}: the service is not open; use `async with spec.open(kv_caches) as offload`")
        self._backend.require_usable(call)
        return self._backend

    def __repr__(self) -> str:
        state = "new" if self._backend is None else "closed" if self._closed else "open"
        return f"<OffloadingService {state}, {len(self._requests)} requests>"
