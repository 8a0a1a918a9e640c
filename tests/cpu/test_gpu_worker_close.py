"""How the CPU worker ends: drained, abandoned, interrupted, or with parts that will not go."""

import asyncio
import gc
import itertools
import logging
import threading
import weakref
from dataclasses import dataclass, field

import pytest
import torch

from aiokvoffload.base import GPULoadStoreSpec, Transfer
from aiokvoffload.config import Mode
from aiokvoffload.copy.memory_use import memory_use
from aiokvoffload.cpu.common import PoolShape
from aiokvoffload.cpu.gpu_worker import CPUOffloadingWorker
from aiokvoffload.cpu.machinery import Machinery
from aiokvoffload.device.host import HostDevice
from aiokvoffload.errors import AbandonedError, BrokenError, ClosedError, ConfigError
from aiokvoffload.poller.poller import ANNOUNCED_PER_TURN
from aiokvoffload.testing import ManualClock, ManualDevice
from aiokvoffload.testing.contract import WorkerRig
from aiokvoffload.testing.memory import make_kv_caches, make_worker_rig


@dataclass
class Stage:
    """A worker with one load on a device that holds it."""

    mode: Mode = Mode.AWAITED
    device: ManualDevice = field(default_factory=ManualDevice)
    clock: ManualClock = field(default_factory=ManualClock)
    rig: WorkerRig = field(init=False)
    load: Transfer = field(init=False)
    outlasting: asyncio.Future[None] = field(init=False)

    def begin(self) -> None:
        self.rig = make_worker_rig(self.device, mode=self.mode, clock=self.clock)
        blocks = GPULoadStoreSpec(self.rig.blocks(32, 1))
        self.load = self.rig.worker.submit_load(1, self.rig.slots([0]), blocks)


@pytest.fixture
def stage() -> Stage:
    return Stage()


async def test_a_close_frees_the_memory_only_after_the_last_copy(stage: Stage) -> None:
    """I2, fault 35."""
    before = memory_use().mapped_bytes
    stage.begin()
    closing = asyncio.ensure_future(stage.rig.worker.aclose())
    for _ in range(10):
        await asyncio.sleep(0)
    assert memory_use().mapped_bytes > before
    await stage.load.fence(stage.device.create_stream())
    stage.device.run_all()
    await closing
    assert memory_use().mapped_bytes == before
    assert stage.load.result is not None


async def test_a_cancelled_close_goes_on_and_a_second_one_waits_for_the_same_end(stage: Stage) -> None:
    """I2, fault 32."""
    stage.begin()
    first = asyncio.ensure_future(stage.rig.worker.aclose())
    await stage.clock.wait_for_sleeper()
    first.cancel()
    await asyncio.wait([first])
    assert first.cancelled()
    second = asyncio.ensure_future(stage.rig.worker.aclose())
    await stage.load.fence(stage.device.create_stream())
    assert not second.done()
    stage.device.run_all()
    await second
    await stage.rig.worker.aclose()


async def test_a_close_that_times_out_abandons_what_is_left(stage: Stage) -> None:
    """I1, I2, fault 35: the memory is leaked, not unmapped; the straggler may still write into it."""
    stage.begin()
    before = memory_use()
    await stage.load.fence(stage.device.create_stream())
    closing = asyncio.ensure_future(stage.rig.worker.aclose())
    await stage.clock.wait_for_sleeper()
    stage.clock.advance(29.0)
    await asyncio.sleep(0)
    assert not closing.done()
    stage.clock.advance(1.0)
    with pytest.raises(AbandonedError, match=r"\[1\]"):
        await closing
    result = await stage.load
    assert (result.success, result.failed_indices) == (False, (0,))
    with pytest.raises(AbandonedError):
        await stage.load.released
    after = memory_use()
    assert after.mapped_bytes < before.mapped_bytes
    assert after.abandoned_bytes > before.abandoned_bytes
    stage.device.release()
    with pytest.raises(AbandonedError):
        await stage.rig.worker.aclose()
    with pytest.raises(ClosedError):
        stage.rig.worker.submit_load(2, stage.rig.slots([0]), GPULoadStoreSpec([0, 1]))


def test_a_stepped_close_drains_and_abandons_too(stage: Stage) -> None:
    stage.mode = Mode.STEPPED
    real = iter(range(1000))
    stage.clock.now_s = lambda: float(next(real))  # type: ignore[method-assign] # every look takes a second
    stage.begin()
    with pytest.raises(AbandonedError, match=r"\[1\]"):
        stage.rig.worker.close()
    assert [result.success for result in stage.rig.worker.get_finished()] == [False]
    stage.device.release()


async def test_a_failed_step_of_a_close_skips_no_other(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Fault 35: memory that cannot be unpinned is abandoned, the rest is freed."""
    stage.begin()
    stage.device.release()
    await stage.load

    def refuse(address: int, size_bytes: int) -> None:
        raise OSError(f"cannot unpin {size_bytes} bytes at {address:#x}")

    monkeypatch.setattr(stage.device, "unpin", refuse)
    before = memory_use()
    with caplog.at_level(logging.CRITICAL), pytest.raises(BrokenError, match="cannot unpin"):
        await stage.rig.worker.aclose()
    after = memory_use()
    assert after.mapped_bytes < before.mapped_bytes
    assert after.abandoned_bytes > before.abandoned_bytes


def test_a_worker_that_cannot_be_made_keeps_nothing() -> None:
    """Not even the thread of a device that it was given to own."""
    tensors = [torch.zeros((4, 64), dtype=torch.uint8)]
    with pytest.raises(ConfigError, match="chunk_bytes"):
        CPUOffloadingWorker(
            make_kv_caches(tensors),
            [PoolShape((0,), 65, 4)],
            blocks_per_chunk=[1],
            device=HostDevice(),
            owns_device=True,
        )


def test_a_worker_closes_the_device_that_it_owns() -> None:
    worker = CPUOffloadingWorker(
        make_kv_caches([torch.zeros((4, 64), dtype=torch.uint8)]),
        [PoolShape((0,), 64, 4)],
        blocks_per_chunk=[1],
        device=HostDevice(),
        mode=Mode.STEPPED,
        owns_device=True,
    )
    worker.close()


async def test_a_worker_that_was_never_used_closes() -> None:
    device = HostDevice()
    rig = make_worker_rig(device)
    await rig.worker.aclose()
    device.close()


def test_a_worker_whose_loop_has_ended_is_closed_from_a_plain_thread(stage: Stage) -> None:
    """I1, fault 34: what was submitted goes on, and a close gives its result."""

    async def leave() -> None:
        stage.begin()

    asyncio.run(leave())
    stage.device.release()
    stage.rig.worker.close()
    assert stage.load.result is not None
    assert stage.load.result.success


def test_all_tasks_of_a_loop_cancelled_at_its_end_cost_no_result(stage: Stage) -> None:
    """I1, I2, fault 32: the copies go on, so does the polling; the last waiter ends with the last copy."""
    results: list[bool] = []

    async def outlast() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stage.device.release()
            results.append((await stage.load).success)

    async def leave() -> None:
        stage.begin()
        stage.outlasting = asyncio.ensure_future(outlast())
        await asyncio.sleep(0)

    asyncio.run(leave())
    assert results == [True]
    stage.rig.worker.close()


def test_a_close_cancelled_with_its_loop_frees_the_memory_when_the_copies_have_ended(stage: Stage) -> None:
    """I2, fault 35: as `asyncio.run` does when a second interrupt has detached whoever waited for the close."""
    before = memory_use()

    async def leave() -> None:
        stage.begin()
        await stage.load.fence(stage.device.create_stream())
        closing = asyncio.ensure_future(stage.rig.worker.aclose())
        await stage.clock.wait_for_sleeper()
        closing.cancel()
        await asyncio.wait([closing])

    asyncio.run(leave())
    assert stage.load.result is not None
    assert "the close was cancelled" in stage.load.result.error
    tensors = [weakref.ref(tensor) for tensor in stage.rig.tensors]
    stage.rig.tensors = ()
    gc.collect()
    assert all(tensor() is not None for tensor in tensors), "a copy may still write there"
    assert memory_use().mapped_bytes > before.mapped_bytes
    stage.device.release()
    for thread in threading.enumerate():
        if thread.name == "aiokvoffload-free":
            thread.join()
    gc.collect()
    assert all(tensor() is None for tensor in tensors)
    assert memory_use() == before


async def test_a_close_whose_task_was_cancelled_says_so_to_the_next_one(stage: Stage) -> None:
    stage.begin()
    closing = asyncio.ensure_future(stage.rig.worker.aclose())
    await stage.clock.wait_for_sleeper()
    next(task for task in asyncio.all_tasks() if task.get_name() == "aiokvoffload-close").cancel()
    stage.device.release()
    for awaitable in (closing, stage.rig.worker.aclose()):
        with pytest.raises(AbandonedError, match="cancelled"):
            await awaitable
    assert stage.load.result is not None


async def test_a_close_whose_task_was_cancelled_before_it_began_frees_the_memory_all_the_same(stage: Stage) -> None:
    before = memory_use()
    stage.begin()
    closing = asyncio.ensure_future(stage.rig.worker.aclose())
    await asyncio.sleep(0)  # the task is there, and has not run
    next(task for task in asyncio.all_tasks() if task.get_name() == "aiokvoffload-close").cancel()
    with pytest.raises(AbandonedError, match="cancelled"):
        await closing
    stage.device.release()
    for thread in threading.enumerate():
        if thread.name == "aiokvoffload-free":
            await asyncio.to_thread(thread.join)
    assert stage.load.result is not None
    assert memory_use() == before


async def test_a_close_cancelled_while_it_frees_frees_once(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.rig = make_worker_rig(stage.device, clock=stage.clock)
    before, begun, go_on, freed = memory_use(), threading.Event(), threading.Event(), threading.Event()
    free, count = Machinery.free, itertools.count()

    def slowly(machinery: Machinery) -> None:
        next(count)
        begun.set()
        assert go_on.wait(10)
        free(machinery)
        freed.set()

    monkeypatch.setattr(Machinery, "free", slowly)
    closing = asyncio.ensure_future(stage.rig.worker.aclose())
    assert await asyncio.to_thread(begun.wait, 10)
    next(task for task in asyncio.all_tasks() if task.get_name() == "aiokvoffload-close").cancel()
    with pytest.raises(AbandonedError, match="cancelled"):
        await closing
    go_on.set()
    assert await asyncio.to_thread(freed.wait, 10)
    assert next(count) == 1
    assert memory_use().mapped_bytes < before.mapped_bytes


async def test_copies_that_ended_while_the_loop_was_kept_from_its_work_are_not_abandoned(stage: Stage) -> None:
    before, rig = memory_use(), make_worker_rig(stage.device, clock=stage.clock)
    loads = [
        rig.worker.submit_load(job_id, rig.slots([job_id % 8]), GPULoadStoreSpec(rig.blocks(2 * job_id, 1)))
        for job_id in range(8 * ANNOUNCED_PER_TURN)
    ]
    for load in loads:
        await load.fence(stage.device.create_stream())
    closing = asyncio.ensure_future(rig.worker.aclose())
    await stage.clock.wait_for_sleeper()
    stage.device.run_all()
    stage.clock.advance(31.0)  # in one pass, as after a stall: nobody has seen all the ends yet
    await closing
    assert all(load.result is not None and load.result.success for load in loads)
    assert memory_use() == before


async def test_a_cancelled_inner_task_of_a_close_frees_nothing_under_a_copy(stage: Stage) -> None:
    """I2."""
    stage.begin()
    await stage.load.fence(
        stage.device.create_stream()
    )  # it is on the device: else nothing would have to be waited for
    others = asyncio.all_tasks()
    closing = asyncio.ensure_future(stage.rig.worker.aclose())
    await stage.clock.wait_for_sleeper()
    mapped = memory_use().mapped_bytes
    for task in asyncio.all_tasks() - others - {closing}:
        if task.get_name() != "aiokvoffload-close":
            task.cancel()
    with pytest.raises(AbandonedError, match="cancelled"):
        await closing
    assert memory_use().mapped_bytes == mapped
    stage.device.release()


def test_a_worker_that_was_closed_is_bound_no_more() -> None:
    device = HostDevice()
    rig = make_worker_rig(device)
    rig.worker.close()

    async def bind() -> None:
        with pytest.raises(ClosedError):
            rig.worker.bind()
        await rig.worker.aclose()

    asyncio.run(bind())
    device.close()


async def test_slots_that_somebody_outside_may_touch_stay_mapped_after_a_close() -> None:
    """I2: a tier's read that hangs ends in the slots whenever it does."""
    device, abandoned = HostDevice(), memory_use().abandoned_bytes
    try:
        rig = make_worker_rig(device)
        (view,) = rig.worker.slot_views(0, [1])
        rig.worker.keep_memory()
        await rig.worker.aclose()
        view[:] = bytes(len(view))
        assert memory_use().abandoned_bytes > abandoned
    finally:
        await asyncio.to_thread(device.close)
