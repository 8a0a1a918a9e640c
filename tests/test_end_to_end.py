"""Real bytes through the front door, on the host device and, where there is one, on a GPU."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pytest
import torch

from aiokvoffload import (
    CanonicalKVCacheRef,
    CanonicalKVCaches,
    CanonicalKVCacheTensor,
    CPUOffloadingConfig,
    CPUOffloadingSpec,
    Device,
    GPULoadStoreSpec,
    GroupConfig,
    OffloadingService,
    Stream,
)
from aiokvoffload.testing.gate import hold
from tests.service.conftest import keys_of

PAGE_BYTES = 1024
NUM_BLOCKS = 128
NUM_LAYERS = 3
AROUND = (range(39, 40), range(40, 44), range(44, 45))
"""Blocks of a load that begins and ends inside chunks, and their neighbours."""


@dataclass
class Engine:
    """GPU memory of a small engine, and a service over it."""

    device_name: str
    groups: Sequence[GroupConfig] = (GroupConfig(blocks_per_chunk=2),)
    num_slots: int = 64
    tensors: list[torch.Tensor] = field(init=False)
    service: OffloadingService = field(init=False)

    def __post_init__(self) -> None:
        torch_device = torch.device("cpu" if self.device_name == "host" else "cuda")
        self.tensors = [
            torch.zeros((NUM_BLOCKS, PAGE_BYTES), dtype=torch.uint8, device=torch_device) for _ in range(NUM_LAYERS)
        ]
        if torch_device.type == "cuda":
            torch.cuda.synchronize()  # streams of torch's pool do not wait for the default one, which writes the zeros
        caches = CanonicalKVCaches(
            [CanonicalKVCacheTensor(tensor, PAGE_BYTES) for tensor in self.tensors],
            [[CanonicalKVCacheRef(layer, PAGE_BYTES) for layer in range(NUM_LAYERS)] for _ in self.groups],
        )
        per_chunk = self.groups[0].blocks_per_chunk * NUM_LAYERS * PAGE_BYTES
        row_bytes = -(-per_chunk // 4096) * 4096
        config = CPUOffloadingConfig(
            policy="lru", cpu_bytes=self.num_slots * row_bytes, groups=tuple(self.groups), device=self.device_name
        )
        self.service = CPUOffloadingSpec(config).open(caches)

    def forget(self) -> None:
        """Let go of the GPU memory, which pytest would keep until the next test."""
        del self.tensors, self.service

    @property
    def device(self) -> Device:
        return self.service.device

    def fill(self, stream: Stream, blocks: range, value: int) -> None:
        """Write `value + layer` into some blocks, in stream order."""

        def write() -> None:
            # A slice, not a list of indices: those would be copied to a GPU, and the host would wait for that.
            for layer, tensor in enumerate(self.tensors):
                tensor[blocks.start : blocks.stop] = (value + layer) % 256

        self.device.enqueue(stream, write)

    def copy_out(self, stream: Stream, blocks: range) -> list[torch.Tensor]:
        """What the blocks hold at this place in the stream's order; to be read after `drained`."""
        copies = [torch.empty((len(blocks), PAGE_BYTES), dtype=torch.uint8, device=t.device) for t in self.tensors]

        def read() -> None:
            for tensor, copy in zip(self.tensors, copies, strict=True):
                copy.copy_(tensor[blocks.start : blocks.stop])

        self.device.enqueue(stream, read)
        return copies

    async def drained(self, stream: Stream) -> None:
        await asyncio.to_thread(stream.record_event().synchronize)

    @staticmethod
    def holds(copies: Sequence[torch.Tensor], value: int) -> bool:
        return all(bool((copy == (value + layer) % 256).all()) for layer, copy in enumerate(copies))


@pytest.fixture(params=["host", pytest.param("cuda", marks=pytest.mark.gpu)])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    built = Engine(request.param)
    yield built
    built.forget()


async def test_bytes_come_back_through_cpu_memory(engine: Engine) -> None:
    async with engine.service as service:
        stream = engine.device.create_stream()
        keys, blocks = keys_of(8), range(16)
        engine.fill(stream, blocks, 7)
        async with service.request("writer") as request:
            assert (await request.store(keys, blocks, after=stream)).stored == 8
        engine.fill(stream, range(NUM_BLOCKS), 0)
        async with service.request("reader") as request:
            target = range(40, 56)
            load = request.load(keys, target, after=stream)
            await load.fence(stream)
            copies = engine.copy_out(stream, target)
            result = await load
        await engine.drained(stream)
        assert (result.served, result.loaded_bytes) == (8, 16 * NUM_LAYERS * PAGE_BYTES)
        assert engine.holds(copies, 7)


async def test_sixteen_loads_of_one_prefix_are_sixteen_right_copies(engine: Engine) -> None:
    """Fault 19."""
    async with engine.service as service:
        stream = engine.device.create_stream()
        keys = keys_of(4)
        engine.fill(stream, range(8), 9)
        async with service.request("writer") as request:
            await request.store(keys, range(8), after=stream)
        engine.fill(stream, range(NUM_BLOCKS), 0)

        async def read(number: int) -> list[torch.Tensor]:
            target = range(number * 8, number * 8 + 8)
            async with service.request(f"reader-{number}") as request:
                load = request.load(keys, target, after=stream)
                await load.fence(stream)
                copies = engine.copy_out(stream, target)
                assert (await load).served == 4
            return copies

        all_copies = await asyncio.gather(*(read(number) for number in range(16)))
        await engine.drained(stream)
        assert all(engine.holds(copies, 9) for copies in all_copies)


async def test_a_store_reads_what_the_stream_had_written_and_not_what_it_writes_next(engine: Engine) -> None:
    """Faults 1 and 2: the overwrite is enqueued right after `store` returns, before any await."""
    async with engine.service as service:
        stream = engine.device.create_stream()
        keys, blocks = keys_of(8), range(16)
        engine.fill(stream, blocks, 1)
        async with service.request("writer") as request:
            engine.fill(stream, blocks, 2)
            store = request.store(keys, blocks, after=stream)
            engine.fill(stream, blocks, 3)
            await store
        async with service.request("reader") as request:
            load = request.load(keys, range(40, 56), after=stream)
            await load.fence(stream)
            copies = engine.copy_out(stream, range(40, 56))
            await load
        await engine.drained(stream)
        assert engine.holds(copies, 2)


async def test_a_store_that_ignores_the_producer_reads_too_early(engine: Engine) -> None:
    """The check can fail: with the fence of fault 1 dropped, the store sees what was there before."""
    async with engine.service as service:
        stream = engine.device.create_stream()
        keys, blocks = keys_of(4), range(8)
        before = stream.record_event()
        go_on = hold(engine.device, stream)
        engine.fill(stream, blocks, 5)
        async with service.request("writer") as request:
            await request.store(keys, blocks, after=before)
            go_on()
        async with service.request("reader") as request:
            load = request.load(keys, range(40, 48), after=stream)
            await load.fence(stream)
            copies = engine.copy_out(stream, range(40, 48))
            await load
        await engine.drained(stream)
        assert not engine.holds(copies, 5)


async def test_a_load_overwrites_only_when_the_readers_before_it_have_read(engine: Engine) -> None:
    """I8: a load starts after what its stream had enqueued."""
    async with engine.service as service:
        stream = engine.device.create_stream()
        keys, blocks = keys_of(4), range(8)
        engine.fill(stream, blocks, 5)
        async with service.request("writer") as request:
            await request.store(keys, blocks, after=stream)
        engine.fill(stream, blocks, 6)
        go_on = hold(engine.device, stream)
        reads = engine.copy_out(stream, blocks)
        async with service.request("reader") as request:
            load = request.load(keys, blocks, after=stream)
            go_on()
            await load
        await engine.drained(stream)
        assert engine.holds(reads, 6)


async def test_a_load_inside_chunks_leaves_the_rest_untouched(engine: Engine) -> None:
    """Fault 47."""
    async with engine.service as service:
        stream = engine.device.create_stream()
        keys = keys_of(3)
        engine.fill(stream, range(6), 8)
        async with service.request("writer") as request:
            await request.store(keys, range(6), after=stream)
        engine.fill(stream, range(NUM_BLOCKS), 0)
        async with service.request("reader") as request:
            load = request.load(keys, GPULoadStoreSpec(range(40, 44), [4], [1]), after=stream)
            await load.fence(stream)
            before, inside, after = (engine.copy_out(stream, blocks) for blocks in AROUND)
            await load
        await engine.drained(stream)
        assert engine.holds(inside, 8)
        assert engine.holds(before, 0)
        assert engine.holds(after, 0)


async def test_a_later_store_of_a_reused_slot_never_reaches_an_earlier_load(engine: Engine) -> None:
    """Fault 4: copies that share a slot keep their order, whatever stream they are on."""
    small = Engine(engine.device_name, num_slots=4)
    async with small.service as service:
        stream = small.device.create_stream()
        for turn in range(20):
            keys = keys_of(4, name=f"turn-{turn}")
            small.fill(stream, range(8), turn)
            async with service.request(f"writer-{turn}") as request:
                await request.store(keys, range(8), after=stream)
            async with service.request(f"reader-{turn}") as request:
                load = request.load(keys, range(8, 16), after=stream)
                await load.fence(stream)
                copies = small.copy_out(stream, range(8, 16))
                assert (await load).served == 4
            await small.drained(stream)
            assert small.holds(copies, turn)
        service.check_integrity()
    small.forget()
