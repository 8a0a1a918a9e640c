"""What a worker promises of copies in stages, on a device in the test's hand."""

import asyncio

import pytest
import torch

from aiokvoffload.base import GPULoadStoreSpec, Transfer
from aiokvoffload.config import CopyConfig
from aiokvoffload.cpu.gpu_worker import CPUOffloadingWorker
from aiokvoffload.testing import ManualDevice
from aiokvoffload.testing.memory import make_worker_rig

STAGED = CopyConfig(engine="staged", staging_bytes=4 << 20)


class Stage:
    """A worker that copies in stages."""

    def __init__(self, device: ManualDevice | None = None, *, num_slots: int = 8, page_bytes: int = 512) -> None:
        self.device = device or ManualDevice()
        self.rig = make_worker_rig(
            self.device, copy=STAGED, num_slots=num_slots, num_blocks=8 * num_slots, page_bytes=page_bytes
        )
        assert isinstance(self.rig.worker, CPUOffloadingWorker)
        self.worker = self.rig.worker

    def store(self, job_id: int, chunks: int = 1, *, protect_source: bool = False) -> Transfer:
        blocks = GPULoadStoreSpec(self.rig.blocks(0, chunks))
        slots = self.rig.slots(range(chunks))
        return self.worker.submit_store(job_id, blocks, slots, protect_source=protect_source)

    async def close(self) -> None:
        self.device.release()
        await self.worker.aclose()


async def poll(times: int = 30) -> None:
    for _ in range(times):
        await asyncio.sleep(0)


async def test_blocks_are_released_after_the_gather_and_before_the_bytes_have_arrived() -> None:
    stage = Stage()
    store = stage.store(1)
    await store.fence(stage.device.create_stream())
    freed: list[int] = []
    store.on_released(lambda: freed.append(stage.device.pending_work))
    stage.device.step()  # the descriptors
    await poll()
    assert freed == []
    stage.device.step()  # the gather
    await store.released
    assert (freed, store.result) == ([1], None)
    stage.device.step()
    assert (await store).success
    await stage.close()


async def test_a_protected_store_holds_its_caller_for_the_gather_only() -> None:
    """Fault 2: what the caller enqueues next may overwrite the blocks, but need not wait for the bus."""
    stage = Stage()
    caller = stage.device.create_stream()
    ran: list[bool] = []
    with stage.device.use(caller):
        store = stage.store(1, protect_source=True)
    stage.device.enqueue(caller, lambda: ran.append(store.result is None))
    assert ran == []
    for _ in range(3):  # descriptors, gather, and the caller's own work, which the DMA does not come before
        stage.device.step()
    stage.device.run_all()
    await store
    assert ran == [True]
    await stage.close()


async def test_an_expedited_load_is_enqueued_before_the_rest_of_a_long_one() -> None:
    """The long job's remaining segments are not even enqueued when the urgent one is."""
    # Memory of this size gets its pages from several threads, which a loop must not wait for.
    stage = await asyncio.to_thread(Stage, ManualDevice(), num_slots=64, page_bytes=60_000)
    await stage.store(1, 64, protect_source=True).fence(stage.device.create_stream())
    stage.device.run_all()
    await stage.worker.wait([1])
    stage.device.hold_submissions()
    order: list[int] = []
    long = stage.worker.submit_load(2, stage.rig.slots(range(64)), GPULoadStoreSpec(self_blocks(stage, 64)))
    urgent = stage.worker.submit_load(
        3, stage.rig.slots([0]), GPULoadStoreSpec(self_blocks(stage, 66)[-2:]), expedited=True
    )
    fences = [asyncio.ensure_future(_note(transfer, order, stage)) for transfer in (long, urgent)]
    stage.device.release_submissions()
    await asyncio.gather(*fences)
    assert order == [3, 2]
    await stage.close()


def self_blocks(stage: Stage, chunks: int) -> list[int]:
    return stage.rig.blocks(2 * 64, chunks)


async def _note(transfer: Transfer, order: list[int], stage: Stage) -> None:
    await transfer.fence(stage.device.create_stream())
    order.append(transfer.job_id)


async def test_jobs_of_both_engines_of_one_lane_and_of_several_lanes_keep_the_order_of_a_slot() -> None:
    """I8, fault 4."""
    stage = Stage()
    for tensor in stage.rig.tensors:
        tensor[:] = 1
    first = stage.store(1)
    await first.fence(stage.device.create_stream())
    load = stage.worker.submit_load(2, stage.rig.slots([0]), GPULoadStoreSpec([32, 33]))
    await load.fence(stage.device.create_stream())
    second = stage.worker.submit_store(3, GPULoadStoreSpec([40, 41]), stage.rig.slots([0]), protect_source=True)
    stage.device.run_all()
    assert all([(await each).success for each in (first, load, second)])
    for tensor in stage.rig.tensors:
        assert bool((tensor[32:34] == 1).all())
    await stage.close()


async def test_the_rings_are_counted_and_bounded() -> None:
    stage = Stage()
    statistics = stage.worker.statistics()
    assert statistics.engine == "staged"
    assert 3 << 20 < statistics.staging_bytes <= STAGED.staging_bytes
    await stage.close()


@pytest.mark.parametrize("chunks", [0, 1, 64])
async def test_stored_chunks_are_in_their_slots(chunks: int) -> None:
    stage = Stage(num_slots=64)
    stage.device.release()
    for layer, tensor in enumerate(stage.rig.tensors):
        tensor[:] = ((torch.arange(len(tensor)) + layer) % 251)[:, None]
    assert (await stage.store(1, chunks)).success
    target = stage.rig.blocks(256, chunks)
    assert (await stage.worker.submit_load(2, stage.rig.slots(range(chunks)), GPULoadStoreSpec(target))).success
    for tensor in stage.rig.tensors:
        assert bool((tensor[target] == tensor[: len(target)]).all())
    await stage.close()
