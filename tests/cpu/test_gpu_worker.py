"""The CPU worker: the contract on every device, then what only a device in the test's hand can show."""

import asyncio
import gc
import logging
import threading
import weakref

import numpy as np
import pytest

from aiokvoffload.base import GPULoadStoreSpec, LoadStoreSpec, Stream, Transfer, TransferResult
from aiokvoffload.config import CopyConfig, Mode
from aiokvoffload.copy.engine import CopyEngine, PartialCopyError, RunEngine
from aiokvoffload.copy.host_engine import HostEngine
from aiokvoffload.copy.plan import CopyPlan
from aiokvoffload.device.host import HostDevice
from aiokvoffload.device.open import open_device
from aiokvoffload.errors import ArgumentError, BrokenError, ModeError, TransferError
from aiokvoffload.testing import ManualDevice
from aiokvoffload.testing.contract import OffloadingWorkerContract, WorkerRig
from aiokvoffload.testing.memory import make_worker_rig


class TestOnTheHost(OffloadingWorkerContract):
    def make_rig(self) -> WorkerRig:
        return make_worker_rig(HostDevice())


class TestOnTheHostWithSingleBlockChunks(OffloadingWorkerContract):
    def make_rig(self) -> WorkerRig:
        return make_worker_rig(HostDevice(), blocks_per_chunk=1, num_tensors=1)


class TestStagedOnTheHost(OffloadingWorkerContract):
    def make_rig(self) -> WorkerRig:
        return make_worker_rig(HostDevice(), page_bytes=1234, copy=CopyConfig(engine="staged", staging_bytes=4 << 20))


class TestStagedOnTheHostInSegments(OffloadingWorkerContract):
    """Blocks larger than a segment."""

    def make_rig(self) -> WorkerRig:
        return make_worker_rig(HostDevice(), page_bytes=70_001, copy=CopyConfig(engine="staged", staging_bytes=4 << 20))


class TestDirectOnTheHost(OffloadingWorkerContract):
    def make_rig(self) -> WorkerRig:
        return make_worker_rig(HostDevice(), page_bytes=331, copy=CopyConfig(engine="direct", staging_bytes=4 << 20))


@pytest.mark.gpu
class TestOnCuda(OffloadingWorkerContract):
    def make_rig(self) -> WorkerRig:
        return make_worker_rig(open_device("cuda"))


@pytest.mark.gpu
class TestOnCudaWithBigPages(OffloadingWorkerContract):
    def make_rig(self) -> WorkerRig:
        return make_worker_rig(open_device("cuda"), page_bytes=512 << 10, num_tensors=4)


@pytest.mark.gpu
class TestStagedOnCuda(OffloadingWorkerContract):
    def make_rig(self) -> WorkerRig:
        copy = CopyConfig(engine="staged", staging_bytes=4 << 20)
        return make_worker_rig(open_device("cuda"), page_bytes=70_004, copy=copy)


@pytest.mark.gpu
class TestDirectOnCuda(OffloadingWorkerContract):
    def make_rig(self) -> WorkerRig:
        return make_worker_rig(open_device("cuda"), page_bytes=331, copy=CopyConfig(engine="direct"))


class Stage:
    """A worker on a device in the test's hand; blocks and slots go by chunk."""

    def __init__(self, *, mode: Mode = Mode.AWAITED, engine: CopyEngine | None = None) -> None:
        self.device = ManualDevice()
        self.rig = make_worker_rig(self.device, mode=mode, engine=engine)
        self.worker = self.rig.worker

    def store(self, job_id: int, block: int, slot: int, *, protect_source: bool = False) -> Transfer:
        blocks = GPULoadStoreSpec(self.rig.blocks(block, 1))
        return self.worker.submit_store(job_id, blocks, self.rig.slots([slot]), protect_source=protect_source)

    def load(
        self, job_id: int, slot: int, block: int, *, expedited: bool = False, after: Stream | None = None
    ) -> Transfer:
        blocks = GPULoadStoreSpec(self.rig.blocks(block, 1))
        return self.worker.submit_load(job_id, self.rig.slots([slot]), blocks, expedited=expedited, after=after)

    async def enqueued(self, *transfers: Transfer) -> None:
        """Return when the copies of all are on the device."""
        for transfer in transfers:
            await transfer.fence(self.device.create_stream())

    async def close(self) -> None:
        self.device.release_submissions()
        self.device.release()
        await self.worker.aclose()


async def test_nothing_moves_before_its_predecessor_on_another_stream_has_ended() -> None:
    """I8, fault 4: both copies are on the device, only the first can run."""
    stage = Stage()
    store, load = stage.store(1, 0, 0), stage.load(2, 0, 32)
    await stage.enqueued(store, load)
    assert stage.device.step()
    assert stage.device.pending_work == 1
    assert (await store).success
    assert load.result is None
    stage.device.step()
    assert (await load).success
    await stage.close()


async def test_jobs_that_share_nothing_run_side_by_side() -> None:
    stage = Stage()
    jobs = [stage.store(1, 0, 0), stage.load(2, 1, 32), stage.load(3, 1, 40, expedited=True)]
    await stage.enqueued(*jobs)
    assert stage.device.run_all() == 3
    assert all([(await job).success for job in jobs])
    await stage.close()


async def test_an_expedited_load_of_the_same_slot_waits_for_no_regular_one() -> None:
    """Faults 19 and 29: two reads of one slot are no hazard, and nobody waits for the head of a queue."""
    stage = Stage()
    busy = stage.device.create_stream()
    stage.device.enqueue(busy, lambda: None)
    regular, expedited = stage.load(1, 0, 32, after=busy), stage.load(2, 0, 40, expedited=True)
    await stage.enqueued(regular, expedited)
    assert stage.device.step()
    assert (await expedited).success
    assert regular.result is None
    await stage.close()


async def test_a_protected_store_makes_the_callers_stream_wait_and_an_unprotected_one_does_not() -> None:
    stage = Stage()
    free, held = stage.device.create_stream(), stage.device.create_stream()
    with stage.device.use(free):
        stage.store(1, 0, 0)
    with stage.device.use(held):
        store = stage.store(2, 8, 1, protect_source=True)
    assert free.record_event().query()
    assert not held.record_event().query()
    stage.device.run_all()
    await store
    assert held.record_event().query()
    await stage.close()


async def test_a_fence_waits_until_the_copies_are_enqueued_and_then_binds_the_stream() -> None:
    """Fault 2: a stream does not wait for an event that was not recorded."""
    stage = Stage()
    stream = stage.device.create_stream()
    stage.device.hold_submissions()
    load = stage.load(1, 0, 32)
    fence = asyncio.ensure_future(load.fence(stream))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not fence.done()
    stage.device.release_submissions()
    await fence
    event = stream.record_event()
    assert not event.query()
    stage.device.step()
    assert event.query()
    assert (await load).success
    await stage.close()


async def test_a_held_submission_does_not_hold_the_loop_or_protected_stores() -> None:
    """I10: a slow driver call is somebody else's."""
    stage = Stage()
    stage.device.hold_submissions()
    load, store = stage.load(1, 0, 32), stage.store(2, 0, 1, protect_source=True)
    stage.device.run_all()
    assert (await store).success
    assert load.result is None
    await stage.close()
    assert (await load).success


def test_a_protected_store_behind_a_held_job_waits_for_its_enqueueing() -> None:
    """I8: a stream can wait for its predecessor only once that one has an end."""
    stage = Stage(mode=Mode.STEPPED)
    stage.device.hold_submissions()
    stage.load(1, 0, 32)
    releaser = threading.Timer(0.01, stage.device.release_submissions)
    releaser.start()
    stage.store(2, 32, 1, protect_source=True)
    assert stage.device.pending_work == 2
    stage.device.release()
    stage.worker.close()
    assert [result.success for result in stage.worker.get_finished()] == [True, True]


async def test_a_refused_copy_fails_its_job_and_no_other() -> None:
    """Fault 27."""
    stage = Stage()
    stage.device.refuse_next_copy()
    bad = stage.store(1, 0, 0)
    result = await bad
    assert (result.success, result.failed_indices) == (False, (0,))
    assert "refused" in result.error
    good = stage.store(2, 0, 0)
    await stage.enqueued(good)
    stage.device.run_all()
    assert (await good).success
    with pytest.raises(TransferError, match="refused"):
        await bad.fence(stage.device.create_stream())
    await stage.close()


class HalfEngine(RunEngine):
    """Enqueues the first `runs` runs of a plan and refuses the rest."""

    def __init__(self, device: ManualDevice, runs: int) -> None:
        self.name = "half"
        self._whole, self._runs = HostEngine(device), runs

    def copy(self, plan: CopyPlan, stream: Stream, *, ordered: bool) -> None:
        arrays = (plan.src_ptrs, plan.dst_ptrs, plan.sizes, plan.first_chunks)
        self._whole.copy(CopyPlan(*(array[: self._runs] for array in arrays)), stream, ordered=ordered)
        raise PartialCopyError("no more", self._runs)


@pytest.mark.parametrize(("runs", "failed"), [(5, (0, 1, 2)), (6, (1, 2)), (13, (2,))])
async def test_from_the_first_failure_on_all_chunks_have_failed(runs: int, failed: tuple[int, ...]) -> None:
    """Fault 10: a chunk is 2 blocks of 3 tensors, 6 copies."""
    device = ManualDevice()
    rig = make_worker_rig(device, engine=HalfEngine(device, runs))
    store = rig.worker.submit_store(1, GPULoadStoreSpec(rig.blocks(0, 3)), rig.slots([2, 0, 1]))
    freed: list[int] = []
    store.on_released(lambda: freed.append(device.pending_work))
    for _ in range(40):
        await asyncio.sleep(0)
    assert (store.result, freed) == (None, []), "the part that was enqueued is still to run (I2)"
    device.run_all()
    result = await store
    assert (result.success, result.failed_indices, freed) == (False, failed, [0])
    await rig.worker.aclose()


async def test_a_broken_device_fails_every_job_and_refuses_the_next() -> None:
    """I1, fault 27."""
    stage = Stage()
    jobs = [stage.store(1, 0, 0), stage.load(2, 1, 32), stage.load(3, 2, 40, expedited=True)]
    await stage.enqueued(*jobs)
    stage.device.break_down()
    results = await asyncio.gather(*(_result(job) for job in jobs))
    assert not any(results)
    for job in jobs:
        await job.released
    with pytest.raises(BrokenError):
        stage.store(4, 0, 0)
    await stage.worker.aclose()


async def test_a_submission_to_a_broken_device_raises_or_fails_but_never_hangs() -> None:
    """I1."""
    stage = Stage()
    stage.device.break_down()
    with pytest.raises(BrokenError):
        stage.store(1, 0, 0)
    with pytest.raises(BrokenError):
        stage.load(2, 0, 32)
    await stage.worker.aclose()


async def test_a_device_that_breaks_between_submission_and_enqueueing_fails_the_job() -> None:
    stage = Stage()
    stage.device.hold_submissions()
    load = stage.load(1, 0, 32)
    stage.device.break_down()
    stage.device.release_submissions()
    assert not (await load).success
    await load.released
    await stage.worker.aclose()


async def test_a_callback_that_raises_loses_no_result(caplog: pytest.LogCaptureFixture) -> None:
    """Fault 23."""
    stage = Stage()
    first, second = stage.store(1, 0, 0), stage.store(2, 8, 1)
    told: list[int] = []
    first.on_done(lambda result: [][result.job_id])
    first.on_done(lambda result: told.append(result.job_id))
    second.on_done(lambda result: told.append(result.job_id))
    await stage.enqueued(first, second)
    with caplog.at_level(logging.CRITICAL, logger="aiokvoffload"):
        stage.device.run_all()
        await second
    assert (await first).success
    assert told == [1, 2]
    first.on_done(lambda result: told.append(-result.job_id))
    assert told == [1, 2, -1], "after the end it is called at once"
    await stage.close()


def plans_alive() -> list[CopyPlan]:
    # Not `isinstance`: it would ask torch's deprecated objects for their class, which warns.
    return [item for item in gc.get_objects() if type(item) is CopyPlan]


async def test_descriptors_live_until_the_copies_have_ended() -> None:
    """Faults 5 and 12: the plan's arrays and the GPU tensors are the job's and the worker's to keep."""
    abandoned = len(plans_alive())
    stage = Stage()
    tensor = weakref.ref(stage.rig.tensors[0])
    store = stage.store(1, 0, 0)
    await stage.enqueued(store)
    stage.rig.tensors = ()
    gc.collect()
    assert tensor() is not None
    assert len(plans_alive()) == abandoned + 1
    stage.device.run_all()
    await store
    await stage.close()
    gc.collect()
    assert tensor() is None
    assert len(plans_alive()) == abandoned


async def test_waiting_for_jobs_gives_their_results_and_skips_unknown_ones() -> None:
    stage = Stage()
    stage.store(1, 0, 0)
    stage.store(2, 8, 1)
    stage.device.release()
    assert [result.job_id for result in await stage.worker.wait([2, 77, 1])] == [2, 1]
    assert await stage.worker.wait([1, 2]) == []
    await stage.close()


async def test_each_mode_refuses_the_calls_of_the_other() -> None:
    awaited, stepped = Stage(), Stage(mode=Mode.STEPPED)
    with pytest.raises(ModeError):
        awaited.worker.get_finished()
    awaited.store(1, 0, 0)  # from here on it belongs to this loop
    with pytest.raises(ModeError):
        awaited.worker.close()
    awaited.device.release()
    with pytest.raises(ModeError):
        await stepped.worker.wait([1])
    with pytest.raises(ModeError):
        await stepped.worker.aclose()
    store = stepped.store(1, 0, 0)
    for awaitable in (store, store.released, store.fence(stepped.device.create_stream())):
        with pytest.raises(ModeError):
            await awaitable
    stepped.device.release()
    await asyncio.to_thread(stepped.worker.close)
    await awaited.close()


def test_an_awaited_worker_needs_its_loop() -> None:
    stage = Stage()
    with pytest.raises(ModeError, match="loop"):
        stage.store(1, 0, 0)
    asyncio.run(stage.close())


def test_a_stepped_worker_needs_no_loop() -> None:
    stage = Stage(mode=Mode.STEPPED)
    stream = stage.device.create_stream()
    stage.rig.write(stream, [0, 1], 3)
    stage.worker.submit_store(1, GPULoadStoreSpec([0, 1]), stage.rig.slots([4]), after=stream)
    stage.load(2, 4, 32)
    assert stage.worker.get_finished() == []
    stage.device.release()
    results: list[TransferResult] = []
    while len(results) < 2:
        results += stage.worker.get_finished()
    assert sorted((result.job_id, result.success) for result in results) == [(1, True), (2, True)]
    assert stage.rig.tensors[0][32:34].tolist() == stage.rig.tensors[0][:2].tolist()
    stage.worker.close()
    stage.worker.close()
    assert stage.worker.get_finished() == []


async def test_other_media_and_other_marks_are_refused() -> None:
    stage = Stage()
    with pytest.raises(ArgumentError, match="CPULoadStoreSpec"):
        stage.worker.submit_load(1, LoadStoreSpec(), GPULoadStoreSpec([]))
    with pytest.raises(ArgumentError, match="after"):
        stage.worker.submit_load(1, stage.rig.slots([]), GPULoadStoreSpec([]), after="now")  # type: ignore[arg-type]
    await stage.close()


async def test_statistics_count_bytes_jobs_and_time() -> None:
    stage = Stage()
    stage.device.refuse_next_copy()
    await stage.store(1, 0, 0)
    stage.device.release()
    result = await stage.load(2, 1, 32)
    running = stage.worker.statistics()
    assert (running.jobs_ended, running.jobs_failed, running.jobs_in_flight) == (2, 1, 0)
    assert (running.stored_bytes, running.loaded_bytes) == (0, result.transfer_size)
    assert running.poller.announced == running.poller.lag.samples == 2
    assert running.pinned
    assert "0 in flight, 2 submitted" in repr(stage.worker)
    await stage.close()
    assert "closed" in repr(stage.worker)


async def _result(transfer: Transfer) -> bool:
    return (await transfer).success


async def test_the_views_of_slots_are_the_bytes_that_a_store_has_copied() -> None:
    """Page-aligned, one payload each, whatever the row is padded to."""
    device = HostDevice()
    rig = make_worker_rig(device, page_bytes=500)
    try:
        blocks = rig.blocks(0, 2)
        for number, tensor in enumerate(rig.tensors):
            tensor[:4] = number + 1
        await rig.worker.submit_store(1, GPULoadStoreSpec(blocks), rig.slots([3, 1]))
        views = rig.worker.slot_views(0, [3, 1, 0])
        chunk = b"".join(bytes([number]) * 500 for number in (1, 2, 3)) * 2
        assert [bytes(view) for view in views] == [chunk, chunk, bytes(3000)]
        assert {np.frombuffer(view, np.uint8).ctypes.data % 4096 for view in views} == {0}
    finally:
        await rig.worker.aclose()
        await asyncio.to_thread(device.close)
