"""What the world does to a service: cancelled builds, devices that break, copies that hang, loops that stall."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

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
    Handle,
    Mode,
    OffloadingWorker,
    OffloadKey,
    ReqContext,
    Request,
    StoreResult,
    TransferResult,
)
from aiokvoffload.base.untracked import MAX_TRACKED
from aiokvoffload.config import GroupConfig
from aiokvoffload.copy.memory_use import memory_use
from aiokvoffload.cpu.common import CPULoadStoreSpec, PoolShape
from aiokvoffload.cpu.gpu_worker import CPUOffloadingWorker
from aiokvoffload.cpu.manager import CPUOffloadingManager
from aiokvoffload.device.host import HostStream
from aiokvoffload.errors import ArgumentError, BrokenError, BusyError, ClosedError, ConfigError, TransferError
from aiokvoffload.service import OffloadingService, Parts, ServiceLimits
from aiokvoffload.testing import ManualClock, ManualDevice
from aiokvoffload.tiering.config import TierConfig, TieringOffloadingConfig
from aiokvoffload.tiering.spec import TieringOffloadingSpec
from tests.service.conftest import LIMITS, Stage, keys_of

PAGE_BYTES = 4096


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


@pytest.mark.parametrize(
    ("given", "got"),
    [
        (torch.zeros((20_000, 64)), "got a Tensor"),
        (None, "got a NoneType"),
        ((), "got an empty tuple"),
        ([torch.zeros((2, 64))] * 20_000, "got a Tensor at index 0"),
    ],
)
async def test_something_else_than_memory_is_refused_in_a_line(given: Any, got: str) -> None:
    with pytest.raises(ConfigError, match=f"kv_caches must be a CanonicalKVCaches.*, {got}$") as caught:
        host_spec().open(given)
    assert len(str(caught.value)) < 200


def test_something_else_than_a_configuration_is_refused_in_a_line() -> None:
    for spec in (CPUOffloadingSpec, TieringOffloadingSpec):
        with pytest.raises(ConfigError, match=r"config must be a .*OffloadingConfig, got 5"):
            spec(5)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="tiers must be TierConfig records, at least one, got TierConfig"):
        TieringOffloadingConfig(cpu=CPUOffloadingConfig(cpu_bytes=1 << 20), tiers=TierConfig(make=print))  # type: ignore[arg-type]


async def test_more_memory_than_the_machine_has_is_refused_before_any_of_it_is_touched() -> None:
    """Not after minutes of making tables for it, and not by whoever ends processes that take too much."""
    spec = CPUOffloadingSpec(CPUOffloadingConfig(cpu_bytes=1 << 60, device="host"))
    with pytest.raises(ConfigError, match=f"cpu_bytes must be at most this machine's .* got {1 << 60}"):
        await spec.open(kv_caches()).__aenter__()


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
        before = service.statistics().events.published
        for turn in range(10):
            await stage.fill(keys_of(4, name=f"turn-{turn}"), req_id=f"turn-{turn}")
        assert service.statistics().events.dropped == service.statistics().events.published - before - 1


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


async def walking_store(stage: Stage, request: Request, keys: Sequence[OffloadKey]) -> Handle[StoreResult]:
    """A long store whose first run has ended and whose others are still to come."""
    store = request.store(keys, range(len(keys)))
    while not stage.worker.submitted:
        await asyncio.sleep(0)
    return store


async def finish_everything(stage: Stage, handle: Handle[Any]) -> None:
    while not handle.done():
        stage.worker.finish_all()
        await asyncio.sleep(0)


async def test_nothing_of_a_store_that_a_reset_overtakes_is_ever_readable() -> None:
    """I4, fault 53: its later runs would bring bytes of the old epoch into the new one."""
    stage = Stage(num_slots=64, max_run_keys=4, max_jobs_in_flight=1)
    keys = keys_of(40)
    async with stage.service as service, service.request("a") as request:
        store = await walking_store(stage, request, keys)
        stage.worker.finish_all()
        await service.reset()
        await finish_everything(stage, store)
        result = await store
        assert (result.stored, result.failed_keys, result.error) == (0, tuple(keys), "the cache was reset meanwhile")
        assert request.lookup(keys) == 0
        service.check_integrity()


async def test_nothing_of_a_load_that_a_reset_overtakes_counts_as_served() -> None:
    stage = Stage(num_slots=64, max_run_keys=4, max_jobs_in_flight=1)
    keys = keys_of(40)
    async with stage.service as service:
        async with service.request("writer") as writer:
            await finish_everything(stage, writer.store(keys, range(40)))
        async with service.request("reader") as reader:
            load = reader.load(keys, range(40))
            while stage.worker.submitted[-1].direction.name != "LOAD":
                await asyncio.sleep(0)
            stage.worker.finish_all()
            await service.reset()
            await finish_everything(stage, load)
            assert (await load).served == 0
            assert (await load).failed_keys == tuple(keys)


async def test_a_protected_store_overtakes_nothing_of_its_own_request() -> None:
    """I8: a long load into the same blocks is submitted first, all of it."""
    stage = Stage(num_slots=64, max_run_keys=4)
    keys = keys_of(20)
    async with stage.service as service:
        async with service.request("writer") as writer:
            await finish_everything(stage, writer.store(keys, range(20)))
        before = len(stage.worker.submitted)
        async with service.request("reader") as reader:
            load = reader.load(keys, range(20))
            store = reader.store(keys_of(20, name="other"), range(20), protect_source=True)
            directions = [job.direction.name for job in stage.worker.submitted[before:]]
            assert directions == ["LOAD"] * 5 + ["STORE"] * 5
            await finish_everything(stage, load)
            await finish_everything(stage, store)


async def test_a_protected_store_behind_a_load_that_must_wait_is_refused() -> None:
    stage = Stage()
    keys = keys_of(2)
    async with stage.service as service, service.request("a") as writer, service.request("b") as reader:
        writer.store(keys, [0, 1])
        load = reader.load(keys, [2, 3])
        with pytest.raises(ArgumentError, match="await that load first"):
            reader.store(keys_of(1, name="other"), [2], protect_source=True)
        await finish_everything(stage, load)


async def test_whatever_a_worker_raises_the_run_ends_and_its_slots_are_free() -> None:
    """I1, I7: a MemoryError is no OffloadError."""
    stage = Stage()
    async with stage.service as service, service.request("a") as request:
        stage.worker.submit_error = MemoryError("no room to plan")
        result = await request.store(keys_of(3), [0, 1, 2])
        assert (result.failed_keys, result.error) == (tuple(keys_of(3)), "MemoryError: no room to plan")
        assert service.statistics().manager.pools[0].writing == 0
        assert service.statistics().jobs_in_flight == 0


async def test_an_open_request_of_a_closed_service_refuses_everything() -> None:
    stage = Stage()
    service = await stage.service.__aenter__()
    request = await service.request("a").__aenter__()
    await service.aclose()
    for call in (request.lookup, request.touch, request.prefetch):
        with pytest.raises(ClosedError, match="the service is closed"):
            call(keys_of(1))
    for transfer in (request.load, request.store):
        with pytest.raises(ClosedError, match="the service is closed"):
            transfer(keys_of(1), [0])
    await request.__aexit__(None, None, None)


async def test_a_closed_service_has_no_device_as_one_that_is_not_open() -> None:
    service = host_spec().open(kv_caches())
    with pytest.raises(ClosedError, match="device: the service is not open"):
        _ = service.device
    async with service:
        assert service.device.name == "host"
    with pytest.raises(ClosedError, match="device: the service is not open"):
        _ = service.device


async def test_a_cancelled_pump_fails_what_waits_for_it() -> None:
    """I1: cancelling every task there is, as some programs do at their end, hangs nobody."""
    stage = Stage(num_slots=64, max_run_keys=4, max_jobs_in_flight=1)
    async with stage.service as service, service.request("a") as request:
        store = await walking_store(stage, request, keys_of(40))
        (pump,) = [task for task in asyncio.all_tasks() if task.get_name() == "aiokvoffload-pump"]
        pump.cancel()
        await asyncio.wait([pump])
        with pytest.raises(BrokenError, match="it was cancelled"):
            await store
        with pytest.raises(BrokenError, match="it was cancelled"):
            request.lookup(keys_of(1))
        stage.worker.finish_all()


async def test_a_waiter_of_a_request_that_was_left_hears_of_an_abandoned_close() -> None:
    rig = Rig()
    service = await rig.service.__aenter__()
    request = await service.request("a").__aenter__()
    rig.device.hold()
    store = request.store(keys_of(1), [0], protect_source=False)
    leaving = asyncio.create_task(request.__aexit__(None, None, None))
    for _ in range(2):
        await asyncio.sleep(0)
        leaving.cancel()
    await asyncio.wait([leaving])
    closing = asyncio.create_task(service.aclose())
    while not closing.done():
        await asyncio.sleep(0)
        rig.clock.advance(1.0)
    with pytest.raises(AbandonedError):
        await closing
    with pytest.raises(AbandonedError):
        await store.released
    rig.device.release()
    await asyncio.to_thread(rig.device.close)


async def test_a_callback_that_raises_does_not_keep_the_next_from_its_blocks(caplog: pytest.LogCaptureFixture) -> None:
    """Fault 23."""
    stage = Stage()
    freed: list[str] = []
    async with stage.service as service:
        async with service.request("a") as request:
            with pytest.raises(ArgumentError, match="must be callable, got None"):
                request.on_released(None)  # type: ignore[arg-type]
            store = request.store(keys_of(1), [0])
            with pytest.raises(ArgumentError, match="must be callable, got 5"):
                store.on_released(5)  # type: ignore[arg-type]
            stage.worker.finish_all()
            await store
            request.on_released(lambda: freed.remove("nobody"))
            request.on_released(lambda: freed.append("a"))
        assert freed == ["a"]
        assert "a callback of request 'a' raised" in caplog.text


async def test_a_service_closed_while_it_opens_does_not_open() -> None:
    service = host_spec().open(kv_caches())
    opening = asyncio.create_task(service.__aenter__())
    await asyncio.sleep(0)
    with pytest.raises(ClosedError, match="opened once"):
        await service.__aenter__()
    await service.aclose()
    with pytest.raises(ClosedError, match="while it was being opened"):
        await opening


async def test_a_long_touch_is_counted_run_by_run() -> None:
    """I10."""
    stage = Stage(num_slots=64, max_run_keys=4)
    keys = keys_of(20)
    async with stage.service as service, service.request("a") as request:
        request.touch(keys)
        assert service.statistics().waiting_flows == 1
        for _ in range(20):
            await asyncio.sleep(0)
        assert service.statistics().waiting_flows == 0


@pytest.mark.parametrize("count", [20, MAX_TRACKED + 1])
async def test_what_becomes_of_a_callers_list_after_a_long_touch_is_nothing_to_it(
    monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    stage, touched = Stage(num_slots=64, max_run_keys=8), list[OffloadKey]()
    monkeypatch.setattr(stage.manager, "touch", lambda keys, _: touched.extend(keys))
    keys = keys_of(count)
    async with stage.service as service, service.request("a") as request:
        with pytest.raises(ArgumentError, match="keys must be a sequence"):
            request.touch(frozenset(keys))  # type: ignore[arg-type]
        request.touch(keys)
        keys.reverse()
        while service.statistics().waiting_flows:
            await asyncio.sleep(0)
    assert touched == keys[::-1]


async def test_a_fence_waits_for_every_run_even_if_one_of_them_failed() -> None:
    stage = Stage(num_slots=64, max_run_keys=4)
    keys = keys_of(12)
    stream = HostStream("test")
    try:
        async with stage.service as service:
            async with service.request("writer") as writer:
                await finish_everything(stage, writer.store(keys, range(12)))
            async with service.request("reader") as reader:
                load = reader.load(keys, range(12))
                while len(stage.worker.in_flight) < 3:
                    await asyncio.sleep(0)
                first, second, third = stage.worker.in_flight
                stage.worker.finish(second, success=False)
                with pytest.raises(TransferError) as caught:
                    await load.fence(stream)
                assert caught.value.failed_keys == tuple(keys[4:])
                assert len(stage.worker.fenced) == 2
                stage.worker.finish_all()
                assert (await load).served == 4
                assert {first, third}.isdisjoint(stage.worker.in_flight)
    finally:
        await asyncio.to_thread(stream.close)


async def test_a_queue_that_is_full_refuses_and_what_waits_goes_on() -> None:
    """I11."""
    limits = ServiceLimits(
        max_run_keys=4, max_run_fragments=4, max_jobs_in_flight=1, max_pending_events=10, max_waiting_transfers=2
    )
    stage = Stage(num_slots=64)
    stage.service = OffloadingService(lambda: Parts(stage.manager, stage.workers), groups=stage.groups, limits=limits)
    async with stage.service as service, service.request("a") as request:
        stores = [request.store(keys_of(4, name=f"chain-{number}"), range(4)) for number in range(3)]
        with pytest.raises(BusyError, match="2 transfers wait already"):
            request.store(keys_of(4, name="one too many"), range(4))
        for store in stores:
            await finish_everything(stage, store)
            assert (await store).stored == 4
