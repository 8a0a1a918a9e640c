"""One tier's calls: in turn, each with a deadline, and none at all while the tier is out of service.

Knows calls and how long they take; knows no slots and no requests. What a late call may still touch is released when it
returns, however late (I2, fault 25).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from aiokvoffload.base import ChunkViews, OffloadKey, SecondaryTier
from aiokvoffload.base.tier import LoadOutcome, StoreOutcome
from aiokvoffload.clock import Clock
from aiokvoffload.errors import TierError
from aiokvoffload.tiering.chain.calls import CallEnd, TierCall
from aiokvoffload.tiering.chain.deadline import returned_in_time
from aiokvoffload.tiering.chain.health import TierHealth
from aiokvoffload.tiering.chain.queues import TierQueues
from aiokvoffload.tiering.chain.statistics import CallCounts
from aiokvoffload.tiering.config import TierConfig

logger = logging.getLogger(__name__)

_LAST_WORDS_S = 0.5
"""For a tier's close during which the loop was kept from its work until the time was over."""

_Call = Callable[[Sequence[OffloadKey], Sequence[ChunkViews]], Awaitable[Sequence[Any]]]


class TierLane:
    """Performs the loads and stores of one tier.

    Args:
        tier: an open one, or one that `open` will open.
        config: its limits.
        clock: measures deadlines.
        on_serving: called when the tier goes out of service or comes back.

    Attributes:
        tier: as given.
        loading: whether loads are in service, and so whether a lookup may count on the tier.
        storing: whether stores are; a full disk takes no more, and can still be read.
        queues: what waits and runs.
        late: calls whose deadline has passed and that have not returned.
        loaded: what loads have moved.
        stored: what stores have moved.
    """

    def __init__(
        self, tier: SecondaryTier, config: TierConfig, *, clock: Clock, on_serving: Callable[[], None]
    ) -> None:
        self.tier = tier
        self.loading = TierHealth(f"{tier.name}, for loads", config.max_failures)
        self.storing = TierHealth(f"{tier.name}, for stores", config.max_failures)
        self.queues = TierQueues(
            max_loads=config.max_loads_in_flight,
            max_stores=config.max_stores_in_flight,
            max_store_delay_s=config.max_store_delay_s,
        )
        self.late = 0
        self.loaded, self.stored = CallCounts(), CallCounts()
        self._config, self._clock, self._on_serving = config, clock, on_serving
        self._closing = self._closed = self._owes_reset = False
        self._resets = self._lost = 0
        self._calls: set[asyncio.Task[None]] = set()
        self._probing: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()

    @property
    def serving(self) -> bool:
        """Whether lookups may count on it."""
        return self.loading.serving and not self._resets

    def load(self, call: TierCall) -> None:
        """Load as soon as it is its turn."""
        if not self.serving or self._closing:
            call.refuse()
            return
        self.queues.loads.append(call)
        self._start()

    def store(self, call: TierCall) -> bool:
        """Store as soon as it is its turn; `False` if the tier does not keep up, and the call is refused."""
        if not self.storing.serving or self._closed or not self.queues.admit_store(call):
            call.refuse()
            return False
        self._start()
        return True

    def refuse_waiting(self, *, loads: bool = True, stores: bool = True) -> None:
        """Whatever has not begun never will."""
        for call in self.queues.take_waiting(loads=loads, stores=stores):
            call.refuse()

    def reset(self) -> "asyncio.Task[int | None]":
        """Make the tier forget everything; from the call on nothing of it is served until that is done (fault 53).

        Returns:
            A task, which whoever waits must not cancel: how many keys it was, or `None` if it must wait until the tier
            answers again.
        """
        self._owes_reset = True
        self._resets += 1
        self.refuse_waiting()
        self._on_serving()
        resetting = asyncio.create_task(self._reset(), name=f"aiokvoffload-reset-{self.tier.name}")
        # Not in the task, which may be cancelled before it begins.
        resetting.add_done_callback(self._reset_ended)
        return resetting

    def _reset_ended(self, resetting: "asyncio.Task[int | None]") -> None:
        self._resets -= 1
        if (error := _error_of(resetting)) is not None:
            self._take_all_out(f"a reset was given up: {error!r}")
        self._on_serving()
        self._start()
        self._changed.set()

    async def _reset(self) -> int | None:
        if not self.loading.serving:
            return None
        resetting = asyncio.ensure_future(self.tier.reset())
        if not await returned_in_time(resetting, self._clock, self._clock.now_s() + self._config.store_timeout_s):
            self._watch_late(resetting)
            self._take_all_out(f"a reset did not end in {self._config.store_timeout_s} s")
            return None
        if (error := _error_of(resetting)) is not None:
            self._take_all_out(f"a reset failed: {error!r}")
            return None
        self._owes_reset = False
        return resetting.result()

    async def drain(self, deadline_s: float, *, is_owed: Callable[[], bool] = lambda: False) -> None:
        """Load nothing more, and go on storing until nothing waits or runs, up to the deadline.

        Args:
            deadline_s: of the clock.
            is_owed: whether more is to come; asked at each `look_again`, and when a call has ended.
        """
        self._closing = True
        self.queues.admit_every_store()
        self.refuse_waiting(stores=False)
        if self._probing is not None:
            self._probing.cancel()
            await asyncio.wait([self._probing])
        drained = asyncio.create_task(self._wait_idle(is_owed), name="aiokvoffload-drain")
        await returned_in_time(drained, self._clock, deadline_s)
        drained.cancel()
        await asyncio.wait([drained])

    def look_again(self) -> None:
        """What the tier is owed may have changed."""
        self._changed.set()

    @property
    def closed(self) -> bool:
        """Whether nothing begins any more."""
        return self._closed

    def stop(self) -> None:
        """Begin nothing more; what runs goes on (I2)."""
        self._closed = True
        self.refuse_waiting()

    async def aclose(self, deadline_s: float) -> str:
        """End what waits and runs, up to the deadline, then close the tier.

        Returns:
            What was left, for people; empty if nothing was.
        """
        await self.drain(deadline_s)
        self.stop()
        left = [f"{self.late or len(self._calls)} calls"] if not self.idle else []
        closing = asyncio.ensure_future(self.tier.aclose())
        closing.add_done_callback(_error_of)
        deadline_s = max(deadline_s, self._clock.now_s())
        if not await returned_in_time(closing, self._clock, deadline_s, grace_s=_LAST_WORDS_S):
            left.append("its close")
        elif (error := _error_of(closing)) is not None:
            left.append(f"{error}")
        return f"tier {self.tier.name!r}: {', '.join(left)}" if left else ""

    @property
    def idle(self) -> bool:
        """Whether nothing waits, runs or is late."""
        return self.queues.idle and not self.late

    async def _wait_idle(self, is_owed: Callable[[], bool]) -> None:
        while self._resets or not self.queues.idle or self.late > self._lost or is_owed():
            self._changed.clear()
            await self._changed.wait()

    def _start(self) -> None:
        if self._resets:
            return
        while (call := self.queues.next_load()) is not None:
            self._begin(self._perform_load(call))
        while (call := self.queues.next_store()) is not None:
            self._begin(self._perform_store(call))

    def _begin(self, performing: Any) -> None:
        task = asyncio.create_task(performing, name=f"aiokvoffload-{self.tier.name}")
        self._calls.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._calls.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("an end of a call of tier %r failed", self.tier.name, exc_info=error)
        self._start()
        self._changed.set()

    async def _perform_load(self, call: TierCall) -> None:
        try:
            failed, health = LoadOutcome.FAILED, self.loading
            running = self._run(self.tier.load, call, self.loaded, LoadOutcome.LOADED)
            await self._perform(call, running, self._config.load_timeout_s, failed=failed, health=health)
        finally:
            self.queues.load_ended()

    async def _perform_store(self, call: TierCall) -> None:
        began_s = self._clock.now_s()
        try:
            failed, health = StoreOutcome.FAILED, self.storing
            running = self._run(self.tier.store, call, self.stored, StoreOutcome.STORED)
            await self._perform(call, running, self._config.store_timeout_s, failed=failed, health=health)
        finally:
            self.queues.store_ended(len(call.keys), self._clock.now_s() - began_s)

    async def _run(self, operation: _Call, call: TierCall, counts: CallCounts, moved: Any) -> Sequence[Any]:
        views = call.make_views()
        began_s = self._clock.now_s()
        outcomes = await operation(call.keys, views)
        chunk_bytes = sum(buffer.nbytes for buffer in views[0])  # those of one call are of one group
        counts.add(moved_bytes=outcomes.count(moved) * chunk_bytes, busy_s=self._clock.now_s() - began_s)
        return outcomes

    async def _perform(
        self,
        call: TierCall,
        running_call: Coroutine[Any, Any, Sequence[Any]],
        timeout_s: float,
        *,
        failed: Any,
        health: TierHealth,
    ) -> None:
        running = asyncio.ensure_future(running_call)
        try:
            in_time = await returned_in_time(running, self._clock, self._clock.now_s() + timeout_s)
        except asyncio.CancelledError:
            # Whoever ends a loop cancels every task. The tier may go on all the same, so the buffers are never free.
            self._lose(call)
            raise
        if not in_time:
            await self._wait_late(call, running, timeout_s)
        elif running.cancelled():
            self._lose(call)
            return
        else:
            call.on_settled(CallEnd.RETURNED, self._judge(running, failed, health))
        call.on_returned()

    def _judge(self, running: "asyncio.Future[Sequence[Any]]", failed: Any, health: TierHealth) -> Sequence[Any] | None:
        """The outcomes, and what they say of the tier."""
        error = _error_of(running)
        outcomes = running.result() if error is None else None
        if outcomes is None:
            health.failed(repr(error))
        elif all(outcome is failed for outcome in outcomes):
            health.failed(f"none of {len(outcomes)} keys could be moved")
        else:
            health.succeeded()
        self._health_changed()
        return outcomes

    async def _wait_late(self, call: TierCall, running: "asyncio.Future[Any]", timeout_s: float) -> None:
        self.late += 1
        call.on_settled(CallEnd.LATE, None)
        self._take_all_out(f"a call of {len(call.keys)} keys did not return in {timeout_s} s")
        await asyncio.wait([running])
        if running.cancelled():
            self._lost += 1
        else:
            _error_of(running)
            self.late -= 1

    def _lose(self, call: TierCall) -> None:
        self.late += 1
        self._lost += 1  # nobody hears of its return, for which nothing need wait
        call.on_settled(CallEnd.LATE, None)
        self._take_all_out("a call of it was cancelled from outside: its buffers are never used again")

    def _take_all_out(self, reason: str) -> None:
        self.loading.take_out(reason)
        self.storing.take_out(reason)
        self._health_changed()

    def _health_changed(self) -> None:
        if self.loading.serving and self.storing.serving:
            return
        self.refuse_waiting(loads=not self.loading.serving, stores=not self.storing.serving)
        self._on_serving()
        if self._probing is None and not self._closing:
            self._probing = asyncio.create_task(self._probe_until_it_answers(), name="aiokvoffload-probe")

    async def _probe_until_it_answers(self) -> None:
        while not (self.loading.serving and self.storing.serving):
            await self._clock.sleep_until(self._clock.now_s() + self._config.probe_interval_s)
            # As long as a call has not returned, the tier hangs, whatever else it says.
            if not self.late and await self._answers():
                self.loading.take_back()
                self.storing.take_back()
        self._probing = None
        self._on_serving()

    async def _answers(self) -> bool:
        probing = asyncio.ensure_future(self._probe())
        probing.add_done_callback(_error_of)  # a close may stop the waiting for it
        if not await returned_in_time(probing, self._clock, self._clock.now_s() + self._config.load_timeout_s):
            self._watch_late(probing)
            return False
        return _error_of(probing) is None

    async def _probe(self) -> None:
        if self._owes_reset:
            await self.tier.reset()
            self._owes_reset = False
        await self.tier.probe()

    def _watch_late(self, running: "asyncio.Future[Any]") -> None:
        """A call without buffers is late: as long as it has not returned, the tier is not asked again."""
        self.late += 1
        running.add_done_callback(partial(self._late_returned))

    def _late_returned(self, running: "asyncio.Future[Any]") -> None:
        _error_of(running)
        self.late -= 1
        self._changed.set()

    def __repr__(self) -> str:
        return f"<TierLane {self.tier.name!r}: {self.loading!r}, {self.storing!r}, {self.queues!r}, {self.late} late>"


def _error_of(ended: "asyncio.Future[Any]") -> BaseException | None:
    """What it ended with, which counts as seen by that."""
    if ended.cancelled():
        return TierError("it was cancelled from outside")
    return ended.exception()
