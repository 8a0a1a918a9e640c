"""One request's door: look up, load, store, and leave when no copy touches its GPU blocks any more."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, cast

from aiokvoffload import tracing
from aiokvoffload.base import Event, OffloadKey, ReqContext, Stream
from aiokvoffload.base.untracked import untracked
from aiokvoffload.errors import ArgumentError, ClosedError
from aiokvoffload.events import ChunkMetadata
from aiokvoffload.service.backend import Backend
from aiokvoffload.service.flow import TransferFlow
from aiokvoffload.service.handle import Handle, per_rank, require_callable
from aiokvoffload.service.load import LoadFlow
from aiokvoffload.service.pump import Lane, Progress, guarded_step
from aiokvoffload.service.results import LoadResult, StoreResult
from aiokvoffload.service.segments import Blocks, KeysByGroup, Segment, chains, copy_of, is_flat, plan_load, plan_store
from aiokvoffload.service.store import StoreFlow
from aiokvoffload.service.touch import TouchFlow

logger = logging.getLogger(__name__)


class Request:
    """From `async with service.request(req_id)` to its end. Its calls are plain: they submit and return at once.

    Leaving, however it happens, cancels no copy that runs: it waits until nothing touches this request's GPU blocks.
    Left by an exception or a cancellation, it starts no further copies: keys that were not begun are among the
    `failed_keys` of a load and the `refused_keys` of a store. A second cancellation stops the waiting and nothing else;
    `on_released` then says when the blocks are free (I2).
    """

    def __init__(
        self,
        backend: Backend,
        ctx: ReqContext,
        *,
        on_begin: Callable[["Request"], None],
        on_end: Callable[["Request"], None],
    ) -> None:
        self._backend = backend
        self._ctx = ctx
        self._on_begin = on_begin
        self._on_end = on_end
        self._entered = self._open = False
        self._lane = Lane()
        self._expedited_lane = Lane(expedited=True)
        self._flows: set[TransferFlow[Any]] = set()
        self._left_callbacks: list[Callable[[], None]] = []
        self._has_left = False
        self.loads = self.stores = 0

    @property
    def req_id(self) -> str:
        """The id it was opened under."""
        return self._ctx.req_id

    def lookup(self, keys: Sequence[OffloadKey] | KeysByGroup) -> int:
        """How much can be served now; it pins nothing, so a load may find less (I3).

        Args:
            keys: one group's chain, head first; or one chain per KV-cache group.

        Returns:
            For one chain, its number of leading chunks that can be loaded. For one chain per group, the longest
            position (in the unit of `GroupConfig.span`) at which every group has what it needs there.

        Raises:
            ArgumentError: another number of chains than groups, or what is looked at is no key.
            ClosedError: the request is not open.
        """
        self._require_open("lookup")
        if is_flat(keys, len(self._backend.groups)):
            hits = self._backend.manager.lookup_prefix(tuple(cast("Sequence[OffloadKey]", keys)), self._ctx)
            self._backend.keys.looked(len(keys), hits)
            return hits
        return self._lookup_groups(cast("KeysByGroup", keys))

    def _lookup_groups(self, chains: KeysByGroup) -> int:
        position = self._backend.manager.lookup_groups(chains, self._ctx)
        covered = zip(chains, self._backend.groups, strict=True)
        found = sum(min(len(chain), position // group.span) for chain, group in covered)
        self._backend.keys.looked(sum(map(len, chains)), found)
        return position

    def load(
        self,
        keys: Sequence[OffloadKey],
        blocks: Blocks,
        *,
        after: Stream | Event | Sequence[Stream | Event] | None = None,
        expedited: bool = False,
    ) -> Handle[LoadResult]:
        """Begin to copy chunks into GPU blocks; starts on the device only after `after` (I8).

        Args:
            keys: chain order, head first, group after group.
            blocks: block ids when all keys are of one group and begin at a chunk's first block, else a
                `GPULoadStoreSpec`, which may leave out leading blocks of the first chunk and trailing ones of the last.
            after: what must have ended before the blocks are overwritten: a stream as it is now, or an event; one per
                worker in rank order if a list. `None` is the calling thread's current stream.
            expedited: overtake loads that wait.

        Returns:
            A handle; awaiting it gives a `LoadResult`.

        Raises:
            ArgumentError: an argument is wrong; nothing has moved.
            ClosedError: the request is not open.
            ModeError: this is not the thread of the loop that the request was opened on.
            BrokenError: the device has failed.
            BusyError: too many transfers wait for their turn.
        """
        self._require_open("load")
        self._backend.require_place_in_line("load")
        segments = plan_load(keys, blocks, self._backend.groups)
        self._validate(segments)
        lane = self._expedited_lane if expedited else self._lane
        at_once = self._fits_one_step(segments, lane, enqueued_here=False)
        starts = self._starts(after)
        flow = LoadFlow(self._backend, lane, ctx=self._ctx, segments=segments, after=starts)
        self.loads += 1
        self._begin(flow, lane, at_once=at_once)
        return flow.handle

    def store(
        self,
        keys: Sequence[OffloadKey],
        blocks: Blocks,
        *,
        after: Stream | Event | Sequence[Stream | Event] | None = None,
        protect_source: bool | None = None,
        metadata: Mapping[OffloadKey, ChunkMetadata] | None = None,
    ) -> Handle[StoreResult]:
        """Begin to copy whole, fully computed chunks out of GPU blocks; starts on the device only after `after` (I8).

        The blocks must not be rewritten before the handle's `released`, or a `fence` on the stream that rewrites them.

        Args:
            keys: chain order, head first, group after group.
            blocks: `blocks_per_chunk` blocks for each key, as ids or a `GPULoadStoreSpec`.
            after: what must have ended before the blocks are read; as for `load`.
            protect_source: `True` enqueues everything now and makes the stream `after` wait for it, so that later work
                on that stream may overwrite the blocks; `False` does not, which lets that stream run on beside the
                copies; `None` protects a store that fits one run, where it costs little.
            metadata: of some or all of the keys, what events are to say of them; kept until the last tier has let go of
                the key.

        Returns:
            A handle; awaiting it gives a `StoreResult`.

        Raises:
            ArgumentError: an argument is wrong; nothing has moved.
            ClosedError: the request is not open.
            ModeError: this is not the thread of the loop that the request was opened on.
            BrokenError: the device has failed.
            BusyError: too many transfers wait for their turn.
        """
        self._require_open("store")
        self._backend.require_place_in_line("store")
        segments = plan_store(keys, blocks, self._backend.groups)
        self._validate(segments)
        if protect_source:
            self._clear_lane()
        fits = self._fits_one_step(segments, self._lane, enqueued_here=protect_source is not False)
        protect_source = fits if protect_source is None else protect_source
        starts = self._starts(after, protect_source=protect_source)
        if metadata:
            self._backend.bus.attach_metadata(metadata)
        flow = StoreFlow(
            self._backend,
            self._lane,
            ctx=self._ctx,
            segments=segments,
            after=starts,
            protect_source=protect_source,
        )
        self.stores += 1
        self._begin(flow, self._lane, at_once=fits or protect_source)
        return flow.handle

    def touch(self, keys: Sequence[OffloadKey]) -> None:
        """Count a use of chunks that the GPU still holds, so that their copies below stay."""
        self._require_open("touch")
        keys = untracked(copy_of(keys))
        run_keys = self._backend.run_sizes.most_keys
        if len(keys) <= run_keys and not self._lane.flows:
            self._backend.manager.touch(keys, self._ctx)
        else:
            self._backend.pump.push(self._lane, TouchFlow(self._backend.manager, self._ctx, keys, run_keys=run_keys))

    def prefetch(self, keys: Sequence[OffloadKey] | KeysByGroup) -> int:
        """Begin to bring chunks up into CPU memory, as far as they can be served; it goes on when the request is left.

        Args:
            keys: as for `lookup`.

        Returns:
            How many chunks are to come up because of this call: none, without a lower tier.

        Raises:
            ArgumentError: as for `lookup`; nothing has begun.
            ClosedError: the request is not open.
        """
        self._require_open("prefetch")
        depth = self._backend.depth
        # A single chain is looked up before anything else, and checked there.
        wanted = chains(keys, len(self._backend.groups), checks_one=depth is None)
        return 0 if depth is None else sum(depth.prefetch(chain, self._ctx) for chain in wanted)

    def on_released(self, callback: Callable[[], None]) -> None:
        """Call `callback()` once the request has been left and no copy touches its GPU blocks.

        Raises:
            ArgumentError: it cannot be called.
        """
        require_callable(callback)
        self._left_callbacks.append(callback)
        self._check_left()

    async def __aenter__(self) -> Self:
        if self._entered:
            raise ClosedError(f"request {self.req_id!r} was entered before; a request is entered once")
        self._entered = True
        self._backend.require_home("request")
        await self._backend.turnstile.wait_turn()
        self._on_begin(self)
        self._backend.manager.on_new_request(self._ctx)
        self._open = True
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self._open:
            return
        self._backend.require_home("the end of a request")
        self._open = False
        if exc_type is not None:
            self._stop_lanes()
        try:
            await self._wait_released(was_cancelled=exc_type is asyncio.CancelledError)
        finally:
            self._stop_lanes()
            self._backend.manager.on_request_finished(self._ctx)
            self._has_left = True
            self._on_end(self)
            self._check_left()

    async def _wait_released(self, *, was_cancelled: bool) -> None:
        cancelled: asyncio.CancelledError | None = None
        while waiting := [flow.handle._released for flow in self._flows if not flow.handle._released.done()]:
            try:
                if self._lane.stopped:
                    await self._backend.stop(deque(self._flows))
                # asyncio.wait, unlike gather, leaves the futures alone when it is cancelled.
                await asyncio.wait(waiting)
            except asyncio.CancelledError as error:
                if was_cancelled or cancelled is not None:
                    raise
                cancelled = error
                self._stop_lanes()
        if cancelled is not None:
            raise cancelled
        for flow in self._flows:  # released ones are gone; what is left was abandoned
            flow.handle._released.result()

    def _begin(self, flow: TransferFlow[Any], lane: Lane, *, at_once: bool) -> None:
        if tracing.TRACER is not None:
            flow.trace()
        self._flows.add(flow)
        flow.handle.on_released(lambda: self._flow_released(flow))
        if not at_once:
            self._backend.pump.push(lane, flow)
            return
        while guarded_step(flow) is Progress.AGAIN:
            pass
        if not flow.walked:
            self._backend.pump.push(lane, flow)

    def _flow_released(self, flow: TransferFlow[Any]) -> None:
        self._flows.discard(flow)
        self._check_left()

    def _check_left(self) -> None:
        if not self._has_left or self._flows:
            return
        callbacks, self._left_callbacks = self._left_callbacks, []
        for callback in callbacks:
            try:
                callback()
            except Exception:  # the next one may be what an allocator waits for
                logger.exception("a callback of request %r raised", self.req_id)

    def _stop_lanes(self) -> None:
        """Submit nothing more from now on. There may be thousands of flows, which end one after the other (I10)."""
        self._lane.stopped = self._expedited_lane.stopped = True

    def _clear_lane(self) -> None:
        """Submit all that stands before a store that must be submitted now: jobs keep their call order (I8)."""
        flows = self._lane.flows
        while flows and guarded_step(flows[0]) is not Progress.PARKED:
            if flows[0].walked:
                self._backend.pump.leave(self._lane)
        if flows:
            raise ArgumentError(
                f"protect_source cannot be True while an earlier load of request {self.req_id!r} waits for chunks on "
                "their way: await that load first"
            )

    def _fits_one_step(self, segments: Sequence[Segment], lane: Lane, *, enqueued_here: bool) -> bool:
        """Whether it can be submitted within the call: short enough, and nothing of this request stands before it."""
        sizes = [self._backend.run_sizes.of(segment.group_idx, enqueued_here=enqueued_here) for segment in segments]
        is_short = sum(len(segment.keys) / size.keys for segment, size in zip(segments, sizes, strict=True)) <= 1
        return is_short and not lane.flows and self._backend.has_room() and not self._backend.bus.is_congested

    def _starts(self, after: Any, *, protect_source: bool = False) -> Sequence[Stream | Event | None]:
        """What each rank's copies start after; refuses what is no stream or event before anything is pinned."""
        starts = per_rank("after", after, len(self._backend.workers))
        # What is submitted later must start after the stream as it is now, not as it will be then.
        events = [worker.record_event(start) for worker, start in zip(self._backend.workers, starts, strict=True)]
        # Only a stream can be made to wait; its copies are submitted within this call.
        return starts if protect_source else events

    def _validate(self, segments: Sequence[Segment]) -> None:
        for segment in segments:
            blocks = segment.blocks_of(0, len(segment.keys))
            for worker in self._backend.workers:
                worker.validate_blocks(blocks)

    def _require_open(self, call: str) -> None:
        if not self._open:
            raise ClosedError(f"{call}: request {self.req_id!r} is not open; use it inside `async with`")
        self._backend.require_usable(call)

    def __repr__(self) -> str:
        return f"<Request {self.req_id!r}: {len(self._flows)} transfers touch its blocks>"
