"""`request.load`, from keys to result: pin what is readable, await what is on its way, stop at a miss."""

from collections.abc import Callable, Sequence
from functools import partial

from aiokvoffload import tracing
from aiokvoffload.base import (
    Event,
    OffloadingWorker,
    OffloadKey,
    PrepareLoadOutput,
    ReqContext,
    Stream,
    Transfer,
)
from aiokvoffload.service.ascent import Ascent
from aiokvoffload.service.backend import Backend
from aiokvoffload.service.flow import RESET_MEANWHILE, TransferFlow
from aiokvoffload.service.job import JobOutcome
from aiokvoffload.service.pump import Lane, Progress
from aiokvoffload.service.results import LoadResult
from aiokvoffload.service.segments import Segment


class LoadFlow(TransferFlow[LoadResult]):
    """Loads each group's prefix, never beyond its first miss."""

    span_name = "load"

    def __init__(
        self,
        backend: Backend,
        lane: Lane,
        *,
        ctx: ReqContext,
        segments: Sequence[Segment],
        after: Sequence[Stream | Event | None],
    ) -> None:
        super().__init__(backend, lane, ctx=ctx, segments=segments, after=after)
        # How many leading keys of each segment can still arrive: cut by a miss, a failure, a reset or a stop.
        self._limits = [len(segment.keys) for segment in segments]
        self._ascent = Ascent(backend, ctx, self._wake)

    def trace(self) -> None:
        """Begin a span under the caller's; promotions that this load begins are under it."""
        super().trace()
        self._ascent.span = self.span

    def _step_run(self, segment: Segment, run: Sequence[OffloadKey]) -> Progress:
        manager = self._backend.manager
        prepared = manager.prepare_load(run, self._ctx)
        served = len(prepared.keys)
        try:
            if served:
                self._load(segment, prepared)
            else:
                manager.complete_load(prepared.token)
        except BaseException:
            manager.complete_load(prepared.token)
            raise
        if served == len(run):
            return self._advance(segment, served)
        self._position += served
        if self._ascent.waits_for(segment.keys, self._position):
            return Progress.PARKED
        self._cut(self._segment_idx, self._position)
        return self._next_segment()

    def _wake(self) -> None:
        self._backend.pump.wake(self._lane)

    def _load(self, segment: Segment, prepared: PrepareLoadOutput) -> None:
        blocks = segment.blocks_of(self._position, len(prepared.keys))
        expedited = self._lane.expedited

        def submission(worker: OffloadingWorker, job_id: int, after: Stream | Event | None) -> Callable[[], Transfer]:
            return partial(worker.submit_load, job_id, prepared.spec, blocks, after=after, expedited=expedited)

        self._ascent.use(prepared.keys)
        self._submit(prepared.keys, submission, partial(self._loaded, self._segment_idx, self._position, prepared))

    def _loaded(self, segment_idx: int, first_chunk: int, prepared: PrepareLoadOutput, outcome: JobOutcome) -> None:
        unreadable = () if outcome.refused else sorted(outcome.failed_indices)
        failed_keys = tuple(map(prepared.keys.__getitem__, unreadable))
        is_current = self._backend.manager.complete_load(prepared.token, failed_keys)
        if failed_keys:
            self._backend.publish()
        if not is_current:
            # The bytes are of the old epoch, and nobody may use them.
            self._error = self._error or RESET_MEANWHILE
            self._cut(segment_idx, first_chunk)
        elif outcome.failed_indices:
            self._cut(segment_idx, first_chunk + min(outcome.failed_indices))

    def void(self) -> None:
        """The cache was reset: what arrived before is of the old epoch too."""
        super().void()
        self._limits = [0] * len(self._segments)
        self._tell_unserved()

    def _cut(self, segment_idx: int, served: int) -> None:
        if served < self._limits[segment_idx]:
            self._limits[segment_idx] = served
            self._tell_unserved()

    def _tell_unserved(self) -> None:
        # In parts, which copies nothing of a load that brings nothing: there may be thousands of those at a time.
        limits = zip(self._segments, self._limits, strict=True)
        self.handle._cannot_serve([segment.keys[limit:] if limit else segment.keys for segment, limit in limits])

    def _end_walk(self) -> None:
        if self._walking:
            for segment_idx in range(self._segment_idx, len(self._segments)):
                self._cut(segment_idx, self._position if segment_idx == self._segment_idx else 0)
            self._ascent.end()
        super()._end_walk()

    def _unserved(self) -> tuple[OffloadKey, ...]:
        limits = zip(self._segments, self._limits, strict=True)
        return tuple(key for segment, limit in limits for key in segment.keys[limit:])

    def _traced(self, result: LoadResult) -> tuple[tracing.Attributes, str]:
        counts = {"served": result.served, "failed": len(result.failed_keys), "bytes": result.loaded_bytes}
        return counts, result.error

    def _result(self) -> LoadResult:
        served_by_group = [0] * len(self._backend.groups)
        for segment, limit in zip(self._segments, self._limits, strict=True):
            served_by_group[segment.group_idx] = limit
        served = [(segment.keys, limit) for segment, limit in zip(self._segments, self._limits, strict=True)]
        sources = self._ascent.sources(served)
        unserved = self._unserved()
        self._backend.keys.loaded(sources, len(unserved))
        return LoadResult(tuple(served_by_group), unserved, sources, self._moved_bytes, self._error)
