"""What all requests of one service share: the manager, the workers, the bus, and the count of jobs."""

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Protocol

from aiokvoffload.base import (
    EventKind,
    OffloadingEvent,
    OffloadingManager,
    OffloadingWorker,
    OffloadKey,
    RemovalReason,
    ReqContext,
    ResidentPart,
)
from aiokvoffload.cache.chains import split_by_group
from aiokvoffload.config import GroupConfig
from aiokvoffload.errors import BrokenError, BusyError, ClosedError, ModeError, OffloadError
from aiokvoffload.events import EventBus
from aiokvoffload.service.pump import Pump, Turnstile
from aiokvoffload.service.results import KeyCounts
from aiokvoffload.service.run_size import RunSizes
from aiokvoffload.service.running_store import RunningStore
from aiokvoffload.tiering.chain.walk import PromotionWalk
from aiokvoffload.tracing import Span

PASS_S = 0.0002
"""For so long flows are stopped in one pass of the loop (I10): thousands may wait."""


class LiveFlow(Protocol):
    """A load or a store from its call until its result is there and its GPU blocks are free."""

    @property
    def req_id(self) -> str:
        """Whose it is."""
        ...

    def stop(self) -> None:
        """Submit nothing more."""
        ...

    def void(self) -> None:
        """The cache was reset: nothing that it moved, or would move, is of use. It is still to be stopped."""
        ...

    def fail(self, error: Exception) -> None:
        """End it with an error."""
        ...

    def abandon(self, error: OffloadError) -> None:
        """Its copies did not end in time: its waiters get the error, its blocks never count as free."""
        ...


class LowerTiers(Protocol):
    """What lies below CPU memory; a service may have nothing there."""

    def promote(
        self,
        keys: Sequence[OffloadKey],
        ctx: ReqContext,
        *,
        excluded: Collection[str] = (),
        on_change: Callable[[], None] = ...,
        holds: bool = False,
        cause: Span | None = None,
    ) -> PromotionWalk | None:
        """Begin to bring a chain up; `None` if its first key is in no tier that may be asked."""
        ...

    def prefetch(self, keys: Sequence[OffloadKey], ctx: ReqContext) -> int:
        """Begin to bring up what a lookup counts; returns how many keys are on their way."""
        ...

    def cascade(self, stored_keys: Sequence[OffloadKey], cause: Span | None = None) -> None:
        """Keys were stored, under a span where somebody traces: begin what is to go down."""
        ...

    def room_changed(self) -> None:
        """Slots of CPU memory may have become free."""
        ...


class Backend:
    """The state that flows work on. It is mutated only here and in the flows, always on the loop's thread.

    Args:
        manager: facts.
        workers: bytes, in rank order.
        bus: where changes are told.
        groups: the KV-cache groups.
        max_run_keys: most keys handled in one step.
        max_run_fragments: most copies that the loop enqueues in one step.
        max_jobs_in_flight: most jobs submitted and not ended.
        max_waiting_transfers: most flows waiting for their turn.
    """

    def __init__(
        self,
        *,
        manager: OffloadingManager,
        workers: Sequence[OffloadingWorker],
        bus: EventBus,
        groups: Sequence[GroupConfig],
        max_run_keys: int,
        max_run_fragments: int,
        max_jobs_in_flight: int,
        max_waiting_transfers: int,
    ) -> None:
        self.manager = manager
        self.workers = workers
        self.bus = bus
        self.groups = groups
        self.jobs_in_flight = 0
        self.keys = KeyCounts()
        self.closing = False
        self.broken: BrokenError | None = None
        self.flows: set[LiveFlow] = set()
        self.running_stores: dict[OffloadKey, RunningStore] = {}
        self.depth: LowerTiers | None = None
        self._loop = asyncio.get_running_loop()
        self._max_jobs_in_flight = max_jobs_in_flight
        self._max_waiting_transfers = max_waiting_transfers
        self.turnstile = Turnstile()
        self.pump = Pump(self.has_room, bus.wait_room, self.turnstile.wait_step)
        fragments = [max(w.fragments_per_chunk(group_idx) for w in workers) for group_idx in range(len(groups))]
        self.run_sizes = RunSizes(max_run_keys, max_run_fragments, fragments)
        self._job_ids = itertools.count()

    def require_usable(self, call: str) -> None:
        """Refuse a call that could not be served.

        Raises:
            ClosedError: the service is closed, or being closed.
            BrokenError: a task of the service has died.
            ModeError: this is not the thread of the service's loop.
        """
        self.require_home(call)
        if self.closing:
            raise ClosedError(f"{call}: the service is closed")
        if self.broken is not None:
            raise BrokenError(f"{call}: {self.broken}") from self.broken

    def require_home(self, call: str) -> None:
        """Refuse a call from anywhere but the service's loop, beside which it would run.

        Raises:
            ModeError: this is not the thread of the service's loop.
        """
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            loop = None
        if loop is not self._loop:
            raise ModeError(f"{call}: a service and its requests are used on the thread of the loop that opened it")

    def require_place_in_line(self, call: str) -> None:
        """Refuse a call that would have to wait behind too many others (I11).

        Raises:
            BusyError: as many transfers wait as may.
        """
        if self.pump.waiting_flows >= self._max_waiting_transfers:
            raise BusyError(
                f"{call}: {self.pump.waiting_flows} transfers wait already, as many as may; await some first"
            )

    async def stop_flows(self) -> None:
        """Submit nothing more for anyone."""
        await self.stop(deque(self.flows))

    def void_flows(self) -> deque[LiveFlow]:
        """The cache was reset: nothing that was begun before is of use. Returns what is to be stopped, for `stop`."""
        voided = deque(self.flows)
        for flow in voided:
            flow.void()
        self.stop_some(voided)
        return voided

    async def stop(self, flows: deque[LiveFlow]) -> None:
        """Stop flows, in as many passes of the loop as it takes (I10)."""
        self.stop_some(flows)
        while flows:
            await asyncio.sleep(0)
            self.stop_some(flows)

    def stop_some(self, flows: deque[LiveFlow]) -> None:
        """Stop those for which one pass of the loop has time; the others stay in `flows`."""
        until_s = time.perf_counter() + PASS_S
        while flows:
            flows.popleft().stop()
            if time.perf_counter() >= until_s:
                break

    def break_down(self, error: BrokenError) -> None:
        """Nobody submits any more: whoever waits for that gets the error."""
        self.broken = error
        for flow in tuple(self.flows):
            flow.fail(error)

    def has_room(self) -> bool:
        """Whether another job may be submitted now (I11)."""
        return self.jobs_in_flight < self._max_jobs_in_flight

    def job_started(self) -> int:
        """Count a job and give its number."""
        self.jobs_in_flight += 1
        return next(self._job_ids)

    def job_ended(self) -> None:
        """Count the end of a job; a flow may be waiting for the room."""
        self.jobs_in_flight -= 1
        self.pump.room_changed()
        self.room_changed()

    def room_changed(self) -> None:
        """Slots may have become free, or evictable: a promotion may be waiting for them."""
        if self.depth is not None:
            self.depth.room_changed()

    def forget_running(self, running: RunningStore, keys: Sequence[OffloadKey]) -> None:
        """`running` is over. After a reset a key may belong to a newer store, which stays."""
        for key in keys:
            if self.running_stores.get(key) is running:
                del self.running_stores[key]

    def stored(self, keys: Sequence[OffloadKey], cause: Span | None = None) -> None:
        """A store has been completed, traced by `cause`: tell subscribers, and let it go further down."""
        self.publish()
        if self.depth is not None:
            self.depth.cascade(keys, cause)

    def publish(self) -> None:
        """Tell subscribers what the manager changed."""
        events = self.manager.take_events()
        if not events:
            return
        self.bus.publish(events)
        if lost := {event.tier for event in events if event.reason is RemovalReason.LOST}:
            self.bus.publish(self._all_stored(lost))

    def resident_parts(self) -> Iterator[ResidentPart]:
        """The resident keys, part by part; at each, everything is published that is true by then."""
        parts = self.manager.resident_keys()
        while True:
            self.publish()
            part = next(parts, None)
            if part is None:
                return
            yield part

    def _all_stored(self, tiers: Collection[str]) -> Iterator[OffloadingEvent]:
        """What these tiers hold, at once: whatever happened between two parts would be told twice, or never."""
        for medium, tier, keys in self.manager.resident_keys():
            if tier in tiers:
                for group_keys in split_by_group(keys).values():
                    yield OffloadingEvent(EventKind.STORED, tuple(group_keys), medium, tier)
