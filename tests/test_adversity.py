"""What the world does to a service: cancelled builds, devices that break, copies that hang, loops that stall."""

import asyncio
import time

import pytest
import torch

from aiokvoffload import (
    AbandonedError,
    CanonicalKVCacheRef,
    CanonicalKVCaches,
    CanonicalKVCacheTensor,
    CPUOffloadingConfig,
    CPUOffloadingSpec,
    GPULoadStoreSpec,
    Mode,
    OffloadingWorker,
    ReqContext,
    TransferResult,
)
from aiokvoffload.config import GroupConfig
from aiokvoffload.copy.arena import memory_use
from aiokvoffload.cpu.common import CPULoadStoreSpec, PoolShape
from aiokvoffload.cpu.gpu_worker import CPUOffloadingWorker
from aiokvoffload.cpu.manager import CPUOffloadingManager
from aiokvoffload.errors import ArgumentError, BrokenError
from aiokvoffload.service import OffloadingService, Parts, ServiceLimits
from aiokvoffload.testing import ManualClock, ManualDevice
from tests.service.conftest import Stage, keys_of

PAGE_BYTES = 4096
LIMITS = ServiceLimits(max_run_keys=512, max_run_fragments=1024, max_jobs_in_flight=128, max_pending_events=1000)


def kv_caches(*, num_blocks: int = 64) -> CanonicalKVCaches:
    tensor = torch.zeros((num_blocks, PAGE_BYTES), dtype=torch.uint8)
    return CanonicalKVCaches([CanonicalKVCacheTensor(tensor, PAGE_BYTES)], [[CanonicalKVCacheRef(0, PAGE_BYTES)]])


def finished(worker: OffloadingWorker) -> list[TransferResult]:
    while not (results := worker.get_finished()):
        pass
    return results


def host_spec(mode: Mode = Mode.AWAITED) -> CPUOffloadingSpec:
    return CPUOffloadingSpec(CPUOffloadingConfig(cpu_bytes=16 * PAGE_BYTES, device="host", mode=mode))


class Rig:
    """A service over the real worker on a device that the test holds, breaks or steps."""

    def __init__(self) -> None:
        self.device = ManualDevice(hold=False)
        self.clock = ManualClock()
        self.pool = PoolShape((0,), PAGE_BYTES, 16)
        self.manager = CPUOffloadingManager([self.pool], groups=(GroupConfig(),))
        self.service = OffloadingService(self._build, groups=(GroupConfig(),), limits=LIMITS)

    def _build(self) -> Parts:
        worker = CPUOffloadingWorker(
            kv_caches(), [self.pool], blocks_per_chunk=[1], device=self.device, close_timeout_s=5.0, clock=self.clock
        )
        return Parts(self.manager, [worker], self.device)


async def test_a_cancelled_opening_leaves_no_worker_behind() -> None:
    """Fault 33: the thread that builds cannot be cancelled, so what it builds for nobody is closed."""
    before = memory_use()
    opening = asyncio.create_task(host_spec().open(kv_caches()).__aenter__())
    await asyncio.sleep(0)
    opening.cancel()
    await asyncio.wait([opening])
    assert opening.cancelled()
    assert memory_use().mapped_bytes == before.mapped_bytes


async def test_a_service_that_cannot_be_built_says_why_and_leaves_nothing() -> None:
    caches = kv_caches()
    overlapping = CanonicalKVCaches([*caches.tensors, *caches.tensors], [[*caches.group_data_refs[0]] * 2])
    with pytest.raises((ArgumentError, ValueError), match="overlap"):
        await host_spec().open(overlapping).__aenter__()


async def test_blocks_are_busy_from_the_call_even_if_submission_waits() -> None:
    """Fault 3: a job created now and submitted later; its blocks are not free between."""
    stage = Stage(num_slots=16, max_run_keys=4, max_jobs_in_flight=1)
    freed: list[str] = []
    async with stage.service as service, service.request("first") as first, service.request("second") as second:
        first.store(keys_of(4), range(4))
        waiting = second.store(keys_of(4, name="waiting"), range(4, 8))
        waiting.on_released(lambda: freed.append("second"))
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(stage.worker.submitted) == 1
        assert freed == []
        stage.worker.finish_all()
        while len(stage.worker.submitted) < 2:
            await asyncio.sleep(0)
        assert freed == []
        stage.worker.finish_all()
        await waiting
        await waiting.released
        await asyncio.sleep(0)
        assert freed == ["second"]


async def test_completions_are_handled_even_if_nobody_awaits_the_handle() -> None:
    """Fault 28: by the library, always."""
    stage = Stage()
    async with stage.service as service, service.request("a") as request:
        request.store(keys_of(2), [0, 1])
        stage.worker.finish_all()
        assert request.lookup(keys_of(2)) == 2
        request.load(keys_of(2), [2, 3])
        stage.worker.finish_all()
        assert service.statistics().manager.pools[0].pinned == 0


async def test_only_whole_chunks_can_be_stored() -> None:
    """Fault 11: a chunk whose last position was not computed has no key yet, and fewer blocks than a chunk."""
    stage = Stage(groups=(GroupConfig(blocks_per_chunk=4),))
    async with stage.service as service, service.request("a") as request:
        with pytest.raises(ArgumentError, match="a store covers whole chunks"):
            request.store(keys_of(2), range(7))


async def test_a_figure_that_cannot_be_had_costs_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault 52: a metric never raises into the data path."""
    rig = Rig()

    def unknown(_: object) -> float:
        raise ValueError("no clock today")

    monkeypatch.setattr(rig.device, "completed_at", unknown)
    async with rig.service as service, service.request("a") as request:
        assert (await request.store(keys_of(2), [0, 1])).stored == 2
        assert service.statistics().workers[0].poller.lag.samples == 0


async def test_a_subscriber_that_never_reads_delays_nobody() -> None:
    """Fault 50."""
    stage = Stage(num_slots=4)
    async with stage.service as service:
        service.events.subscribe(max_pending=1)
        for turn in range(10):
            await stage.fill(keys_of(4, name=f"turn-{turn}"), req_id=f"turn-{turn}")
        assert service.statistics().events.dropped == service.statistics().events.published - 1


async def test_a_broken_device_fails_what_runs_and_refuses_what_comes() -> None:
    """I1, fault 27."""
    rig = Rig()
    async with rig.service as service, service.request("a") as request:
        rig.device.hold()
        store = request.store(keys_of(2), [0, 1], protect_source=False)
        await asyncio.sleep(0)
        rig.device.break_down()
        assert (await store).failed_keys == tuple(keys_of(2))
        assert "broke" in (await store).error
        with pytest.raises(BrokenError):
            request.store(keys_of(2), [0, 1])
        rig.device.release()
        service.check_integrity()


async def test_a_close_that_runs_out_of_time_leaks_instead_of_freeing() -> None:
    """I2, fault 35: what a straggler may touch stays mapped, its blocks are never free, and an error says so."""
    rig = Rig()
    freed: list[int] = []
    service = await rig.service.__aenter__()
    before = memory_use()
    request = await service.request("a").__aenter__()
    rig.device.hold()
    store = request.store(keys_of(1), [0], protect_source=False)
    store.on_released(lambda: freed.append(0))
    closing = asyncio.create_task(service.aclose())
    await asyncio.sleep(0)
    while not closing.done():
        rig.clock.advance(1.0)
        await asyncio.sleep(0)
    with pytest.raises(AbandonedError, match="close timed out"):
        await closing
    with pytest.raises(AbandonedError):
        await request.__aexit__(None, None, None)
    assert freed == []
    assert memory_use().abandoned_bytes >= before.abandoned_bytes + 16 * PAGE_BYTES
    rig.device.release()
    await asyncio.to_thread(rig.device.close)


async def test_a_stalled_loop_delays_notice_and_nothing_else() -> None:
    async with host_spec().open(kv_caches()) as service, service.request("a") as request:
        store = request.store(keys_of(4), range(4))
        load = request.load(keys_of(4), range(8, 12))
        time.sleep(0.05)  # noqa: ASYNC251  somebody else's mistake
        assert (await store).stored == 4
        assert (await load).served == 4


def test_a_plain_loop_steps_manager_and_worker_without_asyncio() -> None:
    """Stepped mode: the engine's own thread is the only consumer of completions."""
    spec = host_spec(Mode.STEPPED)
    caches = kv_caches()
    manager, worker = spec.get_manager(caches), spec.get_worker(caches)
    ctx = ReqContext("a")
    manager.on_new_request(ctx)
    prepared = manager.prepare_store(keys_of(3), ctx)
    assert prepared is not None
    assert isinstance(prepared.spec, CPULoadStoreSpec)
    worker.submit_store(1, GPULoadStoreSpec([0, 1, 2]), prepared.spec)
    (result,) = finished(worker)
    assert result.success
    manager.complete_store(prepared.token)
    loading = manager.prepare_load(keys_of(3), ctx)
    worker.submit_load(2, loading.spec, GPULoadStoreSpec([5, 6, 7]))
    (result,) = finished(worker)
    manager.complete_load(loading.token)
    manager.on_request_finished(ctx)
    manager.check_integrity()
    worker.close()
    assert (result.job_id, result.success) == (2, True)
