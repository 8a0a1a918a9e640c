"""What a worker has of the machine: memory, streams, an engine and a thread; got together, and given back together."""

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack
from functools import partial

from aiokvoffload.base import CanonicalKVCaches, PoolFile
from aiokvoffload.config import CopyConfig
from aiokvoffload.copy.arena import FILLED, ArenaOptions, map_pools
from aiokvoffload.copy.choice import EngineMaker, choose_engine, choose_first
from aiokvoffload.copy.direction import Direction
from aiokvoffload.copy.engine import CopyEngine
from aiokvoffload.copy.growth import ArenaGrowth
from aiokvoffload.copy.hazards import HazardTable
from aiokvoffload.copy.layout import lay_out
from aiokvoffload.copy.memory_use import keep_for_good
from aiokvoffload.copy.routes import check_pools, make_routes
from aiokvoffload.copy.selection import Selector
from aiokvoffload.cpu.common import PoolShape
from aiokvoffload.cpu.handler import SingleDirectionOffloadingHandler
from aiokvoffload.cpu.submission import SubmissionThread, Work
from aiokvoffload.cpu.worker_statistics import WorkerStatistics
from aiokvoffload.device.base import Device
from aiokvoffload.errors import BrokenError
from aiokvoffload.poller import PollerStatistics

logger = logging.getLogger(__name__)

EXPEDITED_LOADS, LOADS, STORES, PROTECTED_STORES = range(4)
"""Handlers by index, and in the order in which ends are asked for: the model waits for loads, and whoever hears of a
store's end may submit the next one, whose checking the loads would wait for. Protected stores have a stream of their
own because the owner's thread feeds it, and not the submission thread: each stream is fed by one thread, and the owner
never waits for the other one's driver call."""

_HANDLERS = (
    ("expedited loads", Direction.LOAD, -1, 1),
    ("loads", Direction.LOAD, -1, 3),
    ("stores", Direction.STORE, 0, 3),
    ("protected stores", Direction.STORE, 0, 1),
)
"""Name, direction, priority of the stream that the jobs end in (a load's is the kernel's, whose short work goes before
the engine's), and eighths of the staging memory."""
_THREADS = {EXPEDITED_LOADS: (0, 0), LOADS: (0, 1), STORES: (1, 0)}
"""For each handler that a submission thread feeds: which thread, and which of its lanes; lane 0 goes first. One thread
for each direction: a step and the pause behind it take some 0.2 ms, and each direction needs one every 0.45 ms, so that
one thread would have no time in hand when a driver call takes long."""


class Machinery:
    """Everything of the machine that one worker uses.

    Args:
        kv_caches: the engine's tensors; held until `free`.
        pools: what slots there are.
        blocks_per_chunk: of each group.
        device: where the tensors are.
        owns_device: whether `free` closes it.
        engine: enqueues copies, or makes what does; by default what `copy` says.
        copy: how bytes are copied.
        options: how the memory for slots is got.

    Attributes:
        growth: makes the rest of the memory ready once it is started; the owner starts it.
        selector: checks ids.
        hazards: knows which jobs must wait for which.
        handlers: one for each stream, in the order of the indices above.
        submissions: threads that feed all of them but the one of protected stores.

    Raises:
        ConfigError: tensors and pools do not fit together, or the memory cannot be had. Whatever is raised, nothing is
            kept.
    """

    def __init__(
        self,
        kv_caches: CanonicalKVCaches,
        pools: Sequence[PoolShape],
        *,
        blocks_per_chunk: Sequence[int],
        device: Device,
        owns_device: bool,
        engine: CopyEngine | EngineMaker | None,
        copy: CopyConfig | None = None,
        options: ArenaOptions = FILLED,
    ) -> None:
        copy = copy or CopyConfig()
        self._device, self._owns_device = device, owns_device
        with ExitStack() as undo:
            if owns_device:
                undo.callback(device.close)
            layout = lay_out(kv_caches, device.torch_device)
            check_pools(layout, pools, blocks_per_chunk)
            self._arenas = map_pools(pools, device, options=options)
            self._rows_of_group = {
                group_idx: (arena, pool.chunk_bytes)
                for arena, pool in zip(self._arenas, pools, strict=True)
                for group_idx in pool.groups
            }
            self._keeps_memory = False
            for arena in self._arenas:
                undo.callback(arena.close)
            num_slots = sum(pool.num_slots for pool in pools)
            self._tensors = layout.tensors
            better, self._engine_error = None, ""
            if isinstance(engine, CopyEngine):
                self._engine = engine
            elif engine is None and options.grows:
                self._engine, better = choose_first(device, layout, self._arenas, copy)
            else:
                make_engine: EngineMaker = engine or partial(choose_engine, config=copy)
                self._engine = make_engine(device, layout, self._arenas)
            # Not beside the pinning, whose calls would be timed along with the copies.
            interlude = None if better is None else partial(self._use_better, better, copy.staging_bytes)
            self.growth = ArenaGrowth(self._arenas, interlude=interlude)
            routes = make_routes(layout, pools, self._arenas, blocks_per_chunk)
            self.selector = Selector(routes, layout.num_physical_blocks, num_slots)
            self.hazards = HazardTable(
                [direction for _, direction, *_ in _HANDLERS],
                num_slots=num_slots,
                num_physical_blocks=layout.num_physical_blocks,
            )
            self.handlers = tuple(self._open_handlers(undo, copy))
            device.synchronize_clock()
            self.submissions = (SubmissionThread("loads", 2), SubmissionThread("stores", 1))
            undo.pop_all()

    def _use_better(self, make_engine: Callable[[], CopyEngine], staging_bytes: int) -> None:
        """On the growing memory's thread: jobs that are planned from now on are the better engine's."""
        try:
            engine = make_engine()
            for handler, (*_, eighths) in zip(self.handlers, _HANDLERS, strict=True):
                handler.use(engine, staging_bytes * eighths // 8)
        except Exception as error:  # noqa: BLE001 - compilers and drivers raise anything, and the first engine works on
            self._engine_error = f"{type(error).__name__}: {error}"
            logger.warning("no faster engine can be had, copies go on by %s: %s", self._engine.name, self._engine_error)
        else:
            self._engine = engine

    def _open_handlers(self, undo: ExitStack, copy: CopyConfig) -> Iterator[SingleDirectionOffloadingHandler]:
        for name, direction, priority, eighths in _HANDLERS:
            handler = SingleDirectionOffloadingHandler(
                name,
                direction,
                device=self._device,
                engine=self._engine,
                priority=priority,
                staging_bytes=copy.staging_bytes * eighths // 8,
                turn_bytes=copy.turn_bytes,
            )
            undo.callback(handler.close)
            yield handler

    @staticmethod
    def thread_of(handler: int) -> int:
        """Which of the submission threads feeds this handler."""
        return _THREADS[handler][0]

    def submit(self, handler: int, work: Work) -> None:
        """Have the submission thread do `work`, in the order of this handler's.

        Raises:
            BrokenError: the thread has ended.
        """
        thread, lane = _THREADS[handler]
        self.submissions[thread].put(lane, work)

    @property
    def waits_in_calls(self) -> bool:
        """Whether a call that enqueues may wait: memory is being pinned, or it is not, and copied in the call."""
        if not self.growth.state.ended:
            return True
        return self._device.torch_device.type != "cpu" and not all(arena.pinned_bytes for arena in self._arenas)

    def flush(self, handlers: Collection[int]) -> None:
        """Block until what has been submitted for these handlers has been done.

        Raises:
            BrokenError: the thread has ended.
        """
        for handler in handlers:
            thread, lane = _THREADS[handler]
            self.submissions[thread].flush(lane)

    def queue_of_released(self, handler: int) -> int:
        """The poller's queue for the marks behind which a handler's blocks are free."""
        return len(self.handlers) + handler

    @property
    def staging_bytes(self) -> int:
        """GPU memory of the rings between a copy's stages."""
        return sum(handler.staging_bytes for handler in self.handlers)

    @property
    def pool_bytes(self) -> int:
        """Host memory for slots, ready or not."""
        return sum(arena.size_bytes for arena in self._arenas)

    def statistics(self, poller: PollerStatistics) -> WorkerStatistics:
        """What a worker with this machinery tells about itself."""
        growth = self.growth.state
        return WorkerStatistics(
            streams=tuple(handler.statistics() for handler in self.handlers),
            pool_bytes=self.pool_bytes,
            ready_bytes=sum(arena.ready_bytes for arena in self._arenas),
            pinned_bytes=sum(arena.pinned_bytes for arena in self._arenas),
            engine=self._engine.name,
            engine_error=self._engine_error,
            staging_bytes=self.staging_bytes,
            poller=poller,
            growing=not growth.ended,
            growth_error=growth.error,
        )

    def pool_files(self) -> tuple[PoolFile, ...]:
        """The arenas that are files."""
        shapes = ((arena.descriptor, arena.row_bytes, arena.num_rows) for arena in self._arenas)
        return tuple(PoolFile(descriptor, *shape) for descriptor, *shape in shapes if descriptor is not None)

    def slot_views(self, group_idx: int, slots: Sequence[int]) -> list[memoryview]:
        """The payload of each of these slots."""
        arena, chunk_bytes = self._rows_of_group[group_idx]
        return arena.row_views(slots, chunk_bytes)

    def keep_memory(self) -> None:
        """Never unmap the slots: somebody outside may touch them even after `free`."""
        self._keeps_memory = True

    def synchronize(self) -> None:
        """Block until every stream has ended what it was given, or cannot any more because the device has failed."""
        flushes = [partial(self.flush, [handler]) for handler in _THREADS]
        waits: list[Callable[[], None]] = [*flushes, *(handler.synchronize for handler in self.handlers)]
        for wait in waits:
            try:
                wait()
            except Exception as error:  # noqa: BLE001 - what has failed runs nothing, which is what is asked here
                logger.debug("%r: nothing more to wait for: %s", wait, error)

    def free(self) -> None:
        """Give everything back; every copy must have ended. One failure does not skip the rest (fault 35).

        Raises:
            BrokenError: something could not be given back; the message lists what.
        """
        self.growth.stop()
        self.growth.join()  # it may be giving the handlers an engine
        steps: list[Callable[[], None]] = [thread.stop for thread in self.submissions]
        steps += [handler.close for handler in self.handlers]
        steps += [self._free_arenas]
        if self._owns_device:
            steps.append(self._device.close)
        errors: list[Exception] = []
        for step in steps:
            try:
                step()
            except Exception as error:  # noqa: BLE001 - collected, and raised together below
                errors.append(error)
        self._tensors = ()
        if errors:
            raise BrokenError(f"close: {len(errors)} of {len(steps)} steps failed: {errors}") from errors[0]

    def _free_arenas(self) -> None:
        grown = self.growth.join()
        if self._keeps_memory or not grown:
            for arena in self._arenas:
                arena.abandon()
            keep_for_good(self._arenas, self._device)
            if grown:
                return
            raise BrokenError(f"the thread that pins memory hangs: {self.growth!r} stays mapped")
        errors: list[OSError] = []
        for arena in self._arenas:
            try:
                arena.close()
            except OSError as error:
                errors.append(error)
        if errors:
            raise BrokenError(f"{len(errors)} of {len(self._arenas)} arenas stay pinned: {errors}") from errors[0]

    def abandon(self, *objects: object) -> None:
        """Leave everything that a straggler may touch where it is, for good, `objects` too (I2)."""
        self.growth.stop()
        for thread in self.submissions:
            thread.stop(join=False)
        for handler in self.handlers:
            handler.abandon()
        for arena in self._arenas:
            arena.abandon()
        keep_for_good(self._tensors, self._arenas, self.handlers, self._device, *objects)
