"""Fault 38: a service runs while its memory grows, end to end on the host device, with every byte compared."""

import asyncio
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pytest
import torch

from aiokvoffload.base import CanonicalKVCaches, PoolGrowth
from aiokvoffload.config import CPUOffloadingConfig, HostMemory, Mode
from aiokvoffload.copy.memory_use import memory_use
from aiokvoffload.cpu import spec as spec_module
from aiokvoffload.cpu.spec import CPUOffloadingSpec
from aiokvoffload.errors import ClosedError, ConfigError
from aiokvoffload.service import OffloadingService
from aiokvoffload.testing import PinGateDevice
from aiokvoffload.testing.memory import make_kv_caches
from tests.service.conftest import keys_of

PAGE_BYTES = 4096
SLOTS, PIECE_SLOTS, BLOCKS = 32, 4, 64
WAIT_S = 10


@dataclass
class Growing:
    """A service whose memory grows when the test lets it, and one tensor for each worker."""

    monkeypatch: pytest.MonkeyPatch
    num_workers: int = 1
    host_memory: HostMemory = HostMemory.ANONYMOUS
    device: PinGateDevice = field(default_factory=PinGateDevice)
    tensors: list[torch.Tensor] = field(init=False)
    states: "asyncio.Queue[PoolGrowth]" = field(default_factory=asyncio.Queue)

    def __post_init__(self) -> None:
        self.tensors = [torch.randint(0, 256, (BLOCKS, PAGE_BYTES), dtype=torch.uint8) for _ in range(self.num_workers)]
        self.monkeypatch.setattr(spec_module, "open_device", lambda _: self.device)

    def service(self) -> OffloadingService:
        """Not open yet; its first pieces may be pinned."""
        self.device.allow(self.num_workers)
        config = CPUOffloadingConfig(
            cpu_bytes=SLOTS * PAGE_BYTES * self.num_workers,
            pin_piece_bytes=PIECE_SLOTS * PAGE_BYTES,
            host_memory=self.host_memory,
            device="host",
        )
        caches: list[CanonicalKVCaches] = [make_kv_caches([tensor]) for tensor in self.tensors]
        return CPUOffloadingSpec(config).open(caches)

    def watch(self, service: OffloadingService) -> None:
        """From now on the last worker's states are put into `states`, after the service has seen them."""
        parts = service._parts
        assert parts is not None
        parts.workers[-1].on_growth(self.states.put_nowait)

    async def until(self, slots: int) -> None:
        while (await self.states.get()).ready_slots != (slots,):
            pass

    def allow(self, pieces: int) -> None:
        """Which worker gets them is not known."""
        self.device.allow(pieces)


def capacity(service: OffloadingService) -> tuple[int, int]:
    service.check_integrity()
    (pool,) = service.statistics().manager.pools
    assert pool.free + pool.writing + pool.pinned + pool.evictable + pool.quarantined == pool.capacity
    return pool.capacity, pool.growing


async def store(service: OffloadingService, name: str, blocks: range) -> int:
    async with service.request(f"store {name}") as request:
        return (await request.store(keys_of(len(blocks), name=name), blocks)).stored


async def load(service: OffloadingService, name: str, blocks: range) -> int:
    async with service.request(f"load {name}") as request:
        return (await request.load(keys_of(len(blocks), name=name), blocks)).served


async def test_the_service_is_open_with_the_first_piece_and_uses_each_further_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    growing = Growing(monkeypatch)
    before = memory_use()
    async with growing.service() as service:
        growing.watch(service)
        assert capacity(service) == (PIECE_SLOTS, SLOTS - PIECE_SLOTS)
        (worker,) = service.statistics().workers
        assert (worker.growing, worker.ready_bytes, worker.pinned) == (True, PIECE_SLOTS * PAGE_BYTES, True)
        assert worker.pool_bytes == SLOTS * PAGE_BYTES
        assert await store(service, "a", range(8)) == PIECE_SLOTS
        growing.allow(1)
        await growing.until(2 * PIECE_SLOTS)
        assert capacity(service) == (2 * PIECE_SLOTS, SLOTS - 2 * PIECE_SLOTS)
        assert await store(service, "a", range(8)) == PIECE_SLOTS
        assert await load(service, "a", range(8, 16)) == 8
        assert torch.equal(growing.tensors[0][:8], growing.tensors[0][8:16])
        growing.allow(9)
        assert await service.wait_grown() == PoolGrowth((SLOTS,), True)
        assert capacity(service) == (SLOTS, 0)
        (worker,) = service.statistics().workers
        assert (worker.growing, worker.ready_bytes) == (False, SLOTS * PAGE_BYTES)
    assert (memory_use(), growing.device.pinned) == (before, [])


async def test_stores_loads_and_resets_go_on_while_it_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    growing = Growing(monkeypatch)
    async with growing.service() as service:
        growing.watch(service)

        async def use(number: int) -> None:
            blocks = range(number * 16, number * 16 + 8)
            for turn in range(6):
                name = f"{number}-{turn}"
                stored = await store(service, name, blocks)
                served = await load(service, name, range(blocks.stop, blocks.stop + 8))
                assert served <= stored
                for tensor in growing.tensors:
                    left, right = tensor[blocks.start :][:served], tensor[blocks.stop :][:served]
                    assert torch.equal(left, right)

        async def grow_and_reset() -> None:
            for pieces in range(2, SLOTS // PIECE_SLOTS + 1):
                growing.allow(1)
                await growing.until(pieces * PIECE_SLOTS)
                capacity(service)
                if pieces % 3 == 0:
                    await service.reset()

        await asyncio.gather(*(use(number) for number in range(4)), grow_and_reset())
        assert (await service.wait_grown()).ready_slots == (SLOTS,)
        assert capacity(service) == (SLOTS, 0)


async def test_a_close_while_it_grows_stops_it_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault 35."""
    growing = Growing(monkeypatch)
    before = memory_use()
    async with growing.service() as service:
        waiting = asyncio.create_task(service.wait_grown())
        assert await store(service, "a", range(2)) == 2
        assert await asyncio.to_thread(growing.device.wait_until_pinning, WAIT_S)
        closing = asyncio.create_task(service.aclose())
        with pytest.raises(ClosedError):
            await waiting
        growing.allow(SLOTS)
        await closing
    assert (memory_use(), growing.device.pinned) == (before, [])
    assert growing.device.calls == 2
    assert capacity(service) == (PIECE_SLOTS, SLOTS - PIECE_SLOTS)


async def test_an_opening_that_is_cancelled_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault 32."""
    growing = Growing(monkeypatch)
    before = memory_use()
    service = growing.service()
    growing.device._allowed.acquire()  # the first piece has to wait
    opening = asyncio.create_task(service.__aenter__())
    assert await asyncio.to_thread(growing.device.wait_until_pinning, WAIT_S)
    opening.cancel()
    growing.allow(SLOTS)
    await asyncio.wait([opening])
    assert opening.cancelled()
    assert (memory_use(), growing.device.pinned) == (before, [])


async def test_a_refusal_while_it_grows_leaves_a_smaller_cache_that_works(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Fault 37."""
    growing = Growing(monkeypatch)
    with caplog.at_level(logging.WARNING):
        async with growing.service() as service:
            growing.device.refuse_after(3)
            growing.allow(9)
            growth = await service.wait_grown()
            assert (growth.ready_slots, "cuMemHostRegister" in growth.error) == ((3 * PIECE_SLOTS,), True)
            assert capacity(service) == (3 * PIECE_SLOTS, 0)
            assert await store(service, "a", range(20)) == 12
            assert await load(service, "a", range(32, 44)) == 12
            assert torch.equal(growing.tensors[0][:12], growing.tensors[0][32:44])
            (worker,) = service.statistics().workers
            assert (worker.growing, worker.growth_error, worker.pinned) == (False, growth.error, True)
    assert len(caplog.records) == 1


@pytest.mark.parametrize("open_it", [os.dup, lambda descriptor: os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY)])
async def test_another_process_finds_each_slot_in_its_row(
    open_it: Callable[[int], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    growing = Growing(monkeypatch, num_workers=2, host_memory=HostMemory.MEMFD)
    growing.allow(2 * SLOTS)
    async with growing.service() as service:
        assert await service.wait_grown() == PoolGrowth((SLOTS,), True)
        assert await store(service, "a", range(10)) == 10
        for tensor, (file,) in zip(growing.tensors, service.pool_files(), strict=True):
            assert (file.row_bytes, file.num_slots) == (PAGE_BYTES, SLOTS)
            other = open_it(file.descriptor)
            try:
                rows = await asyncio.to_thread(_read_in_child, other, file.num_slots * file.row_bytes)
            finally:
                os.close(other)
            assert np.array_equal(rows.reshape(SLOTS, PAGE_BYTES)[:10], tensor[:10].numpy())


def _read_in_child(descriptor: int, size_bytes: int) -> npt.NDArray[np.uint8]:
    program = (
        "import mmap, sys\n"
        "with mmap.mmap(int(sys.argv[1]), int(sys.argv[2]), prot=mmap.PROT_READ) as pool:\n"
        "    sys.stdout.buffer.write(pool[:])\n"
    )
    command = [sys.executable, "-c", program, str(descriptor), str(size_bytes)]
    child = subprocess.run(command, pass_fds=[descriptor], capture_output=True, check=True)  # noqa: S603
    return np.frombuffer(child.stdout, dtype=np.uint8)


def test_a_worker_that_steps_has_all_its_memory_unless_it_is_to_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    device = PinGateDevice()
    config = CPUOffloadingConfig(
        cpu_bytes=SLOTS * PAGE_BYTES, pin_piece_bytes=PIECE_SLOTS * PAGE_BYTES, mode=Mode.STEPPED, device="host"
    )
    spec, caches = CPUOffloadingSpec(config), make_kv_caches([torch.zeros((4, PAGE_BYTES), dtype=torch.uint8)])
    device.allow(SLOTS)
    states: list[PoolGrowth] = []
    whole = spec.get_worker(caches, device=device)
    whole.on_growth(states.append)
    assert states.pop() == PoolGrowth((SLOTS,), True)
    whole.close()
    growing = spec.get_worker(caches, device=device, grows=True)
    manager = spec.get_manager(caches, grows=True)
    growing.on_growth(states.append)
    growing.on_growth(lambda growth: manager.grow(growth.ready_slots or (), ended=growth.ended))
    while not states[-1].ended:
        growing.get_finished()
    (pool,) = manager.statistics().pools
    assert (pool.capacity, pool.growing) == (SLOTS, 0)
    growing.close()
    device.close()


def test_a_piece_is_no_larger_than_one_registration_may_be() -> None:
    """Fault 37."""
    with pytest.raises(ConfigError, match="pin_piece_bytes must be at most 68719476736, got 68719476737"):
        CPUOffloadingConfig(cpu_bytes=1, pin_piece_bytes=(64 << 30) + 1)
    with pytest.raises(ConfigError, match="pin_piece_bytes"):
        CPUOffloadingConfig(cpu_bytes=1, pin_piece_bytes=0)
    with pytest.raises(ConfigError, match="host_memory"):
        CPUOffloadingConfig(cpu_bytes=1, host_memory="memfd")  # type: ignore[arg-type]


@pytest.mark.gpu
@pytest.mark.parametrize("host_memory", HostMemory)
async def test_memory_on_a_gpu_grows_pinned_and_brings_every_byte_back(host_memory: HostMemory) -> None:
    page_bytes, slots = 2 << 20, 96
    tensor = torch.randint(0, 256, (2 * slots, page_bytes), dtype=torch.uint8, device="cuda")
    expected = tensor[:slots].clone()
    config = CPUOffloadingConfig(
        cpu_bytes=slots * page_bytes, pin_piece_bytes=16 << 20, host_memory=host_memory, device="cuda"
    )
    async with CPUOffloadingSpec(config).open(make_kv_caches([tensor])) as service:
        assert await store(service, "early", range(8)) == 8
        assert await service.wait_grown() == PoolGrowth((slots,), True)
        (worker,) = service.statistics().workers
        assert (worker.pinned_bytes, worker.pinned, worker.engine) == (slots * page_bytes, True, "auto")
        # The chain of the early keys goes on over what was not ready then, and over the borders of pieces.
        assert await store(service, "early", range(slots)) == slots - 8
        assert await load(service, "early", range(slots, 2 * slots)) == slots
        assert torch.equal(tensor[slots:], expected)
    del tensor, expected
