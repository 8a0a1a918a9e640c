"""`request.store`, from keys to result: reserve slots, copy into them, join running stores of the same keys."""

from collections.abc import Callable, Sequence
from functools import partial

from aiokvoffload import tracing
from aiokvoffload.base import (
    Event,
    GPULoadStoreSpec,
    OffloadingWorker,
    OffloadKey,
    PrepareStoreOutput,
    ReqContext,
    Stream,
    Transfer,
)
from aiokvoffload.service.backend import Backend
from aiokvoffload.service.flow import RESET_MEANWHILE, TransferFlow
from aiokvoffload.service.job import JobOutcome
from aiokvoffload.service.pump import Lane, Progress
from aiokvoffload.service.results import StoreResult
from aiokvoffload.service.running_store import RunningStore
from aiokvoffload.service.segments import Segment


class StoreFlow(TransferFlow[StoreResult]):
    """Stores whole chunks that are absent; everything else about them is bookkeeping."""

    span_name = "store"

    def __init__(
        self,
        backend: Backend,
        lane: Lane,
        *,
        ctx: ReqContext,
        segments: Sequence[Segment],
        after: Sequence[Stream | Event | None],
        protect_source: bool,
    ) -> None:
        # What is to be protected must be on the device before the call returns.
        super().__init__(backend, lane, ctx=ctx, segments=segments, after=after, enqueued_here=protect_source)
        self._stored = self._present = 0
        self._refused: list[OffloadKey] = []
        self._failed: list[OffloadKey] = []

    def _step_run(self, segment: Segment, run: Sequence[OffloadKey]) -> Progress:
        prepared = self._backend.manager.prepare_store(run, self._ctx)
        if prepared is not None and prepared.evicted_keys:
            self._backend.publish()
        to_store = prepared.keys_to_store if prepared is not None else ()
        if prepared is not None:
            self._store_or_release(segment, run, prepared)
        if len(to_store) < len(run):
            self._settle_others(run, frozenset(to_store))
        return self._advance(segment, len(run))

    def _store_or_release(self, segment: Segment, run: Sequence[OffloadKey], prepared: PrepareStoreOutput) -> None:
        try:
            if prepared.keys_to_store:
                self._store(prepared, self._blocks(segment, run, prepared.keys_to_store))
            else:
                self._backend.manager.complete_store(prepared.token)
        except BaseException:
            self._backend.manager.complete_store(prepared.token, prepared.keys_to_store)
            raise

    def _blocks(self, segment: Segment, run: Sequence[OffloadKey], to_store: Sequence[OffloadKey]) -> GPULoadStoreSpec:
        """Where the keys to store lie; they are the run, or some of it in chain order."""
        if len(to_store) == len(run):
            return segment.blocks_of(self._position, len(run))
        wanted = frozenset(to_store)
        return segment.blocks_of_some([index for index, key in enumerate(run, self._position) if key in wanted])

    def _store(self, prepared: PrepareStoreOutput, blocks: GPULoadStoreSpec) -> None:
        running = RunningStore()
        self._backend.running_stores.update(dict.fromkeys(prepared.keys_to_store, running))
        protect_source = self._enqueued_here

        def submission(worker: OffloadingWorker, job_id: int, after: Stream | Event | None) -> Callable[[], Transfer]:
            return partial(
                worker.submit_store, job_id, blocks, prepared.spec, after=after, protect_source=protect_source
            )

        self._submit(prepared.keys_to_store, submission, partial(self._copied, prepared, running))

    def _copied(self, prepared: PrepareStoreOutput, running: RunningStore, outcome: JobOutcome) -> None:
        keys = prepared.keys_to_store
        failed = frozenset(keys[index] for index in outcome.failed_indices)
        if not self._backend.manager.complete_store(prepared.token, failed or ()):
            failed = frozenset(keys)  # nothing of it may be read
            self._error = self._error or RESET_MEANWHILE
        self._backend.stored(keys, self.span)
        self._backend.forget_running(running, keys)
        self._count(keys, failed)
        running.end(failed)

    def _settle_others(self, run: Sequence[OffloadKey], stored_here: frozenset[OffloadKey]) -> None:
        """Keys of the run that were not reserved: stored by someone else now, resident, or not kept."""
        joined: dict[RunningStore, list[OffloadKey]] = {}
        others: list[OffloadKey] = []
        for key in run:
            if key in stored_here:
                continue
            if (running := self._backend.running_stores.get(key)) is not None:
                joined.setdefault(running, []).append(key)
            else:
                others.append(key)
        refused = self._backend.manager.absent(others, self._ctx)
        self._refused += refused
        self._present += len(others) - len(refused)
        for running, keys in joined.items():
            self._running += 1  # the result waits for them; our GPU blocks do not
            running.on_end(partial(self._joined_ended, keys))

    def _joined_ended(self, keys: Sequence[OffloadKey], running: RunningStore) -> None:
        self._count(keys, running.failed_keys or frozenset())
        self._part_ended()

    def _count(self, keys: Sequence[OffloadKey], failed: frozenset[OffloadKey]) -> None:
        failed_here = [key for key in keys if key in failed] if failed else []
        self._failed += failed_here
        self._stored += len(keys) - len(failed_here)

    def _end_walk(self) -> None:
        if self._walking:
            self._refused += self._unserved()
        super()._end_walk()

    def _unserved(self) -> tuple[OffloadKey, ...]:
        """Keys that were never offered, because the request was left first."""
        rest = self._segments[self._segment_idx : self._segment_idx + 1]
        current = [key for segment in rest for key in segment.keys[self._position :]]
        later = [key for segment in self._segments[self._segment_idx + 1 :] for key in segment.keys]
        return (*current, *later)

    def _traced(self, result: StoreResult) -> tuple[tracing.Attributes, str]:
        counts = {
            "stored": result.stored,
            "present": result.present,
            "refused": len(result.refused_keys),
            "failed": len(result.failed_keys),
            "bytes": result.stored_bytes,
        }
        return counts, result.error

    def _result(self) -> StoreResult:
        self._backend.bus.forget_metadata((*self._refused, *self._failed))
        if self._is_void:
            every_key = tuple(key for segment in self._segments for key in segment.keys)
            return StoreResult(0, 0, (), every_key, self._moved_bytes, self._error)
        return StoreResult(
            stored=self._stored,
            present=self._present,
            refused_keys=tuple(self._refused),
            failed_keys=tuple(self._failed),
            stored_bytes=self._moved_bytes,
            error=self._error,
        )
