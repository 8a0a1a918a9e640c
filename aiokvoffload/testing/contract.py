"""The promises of `OffloadingWorker`, as a pytest class that any worker can be held to.

Subclass `OffloadingWorkerContract`, implement `make_rig`, and run it with pytest-asyncio in auto mode. The rig itself
writes and reads GPU memory, so that the worker under test is the only way in which bytes could have come back.
"""

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from aiokvoffload.base import GPULoadStoreSpec, LoadStoreSpec, OffloadingWorker, Stream
from aiokvoffload.device.base import Device
from aiokvoffload.errors import ArgumentError, ClosedError, ModeError
from aiokvoffload.testing.gate import hold


@dataclass
class WorkerRig:
    """A worker over small GPU tensors.

    Attributes:
        worker: under test, in awaited mode, with one group.
        device: where its copies run.
        tensors: the GPU memory, shape (blocks, page_bytes) each.
        blocks_per_chunk: of the group.
        slots: names slots for the worker's medium.
        num_slots: how many there are.
    """

    worker: OffloadingWorker
    device: Device
    tensors: Sequence[torch.Tensor]
    blocks_per_chunk: int
    slots: Callable[[Sequence[int]], LoadStoreSpec]
    num_slots: int

    @property
    def num_blocks(self) -> int:
        """Rows of each tensor."""
        return int(self.tensors[0].shape[0])

    def blocks(self, first: int, count: int) -> list[int]:
        """Ids of `count` chunks' blocks from `first` on."""
        return list(range(first, first + count * self.blocks_per_chunk))

    def write(self, stream: Stream, block_ids: Sequence[int], value: int) -> None:
        """Write `value + id + layer` into each block, in stream order."""

        def write() -> None:
            for layer, tensor in enumerate(self.tensors):
                for block_id in block_ids:
                    tensor[block_id] = (value + block_id + layer) % 251

        self.device.enqueue(stream, write)

    async def read(self, stream: Stream, block_ids: Sequence[int]) -> list[list[int]]:
        """Each layer's first byte of each block, as seen in stream order; checks that a block is all of one value."""
        seen: list[torch.Tensor] = []

        def read() -> None:
            # Not by a list of indices: it would be copied to a GPU first, and the host would wait for the stream.
            seen.extend(torch.stack([tensor[block_id] for block_id in block_ids]) for tensor in self.tensors)

        self.device.enqueue(stream, read)
        await asyncio.to_thread(self.device.record(stream).synchronize)
        for rows in seen:
            assert bool((rows == rows[:, :1]).all()), "a block is torn"
        return [rows[:, 0].tolist() for rows in seen]

    def values(self, block_ids: Sequence[int], value: int) -> list[list[int]]:
        """What `read` gives for blocks as `write` left them."""
        return [[(value + block_id + layer) % 251 for block_id in block_ids] for layer in range(len(self.tensors))]

    def stall(self, stream: Stream) -> Callable[[], None]:
        """Keep `stream` waiting until the returned function is called, or for a while on a GPU."""
        return hold(self.device, stream)


class OffloadingWorkerContract:
    """What every worker promises. The rig needs at least 64 blocks and 8 slots."""

    @abstractmethod
    def make_rig(self) -> WorkerRig:
        """A fresh worker with its memory."""

    @pytest.fixture
    async def rig(self) -> AsyncIterator[WorkerRig]:
        rig = await asyncio.to_thread(self.make_rig)  # pinning memory is no work for a loop
        yield rig
        await rig.worker.aclose()
        rig.device.close()

    async def test_bytes_come_back(self, rig: WorkerRig) -> None:
        stream = rig.device.create_stream()
        source, target = rig.blocks(0, 4), rig.blocks(32, 4)
        rig.write(stream, source, 7)
        slots = rig.slots([5, 0, 7, 2])
        stored = await rig.worker.submit_store(1, GPULoadStoreSpec(source), slots, after=stream)
        loaded = await rig.worker.submit_load(2, slots, GPULoadStoreSpec(target), after=stream)
        assert (stored.success, loaded.success, stored.failed_indices) == (True, True, ())
        assert stored.transfer_size == loaded.transfer_size > 0
        assert await rig.read(stream, target) == rig.values(source, 7)

    async def test_a_store_reads_what_its_stream_wrote_before(self, rig: WorkerRig) -> None:
        """I8, fault 1."""
        stream = rig.device.create_stream()
        source, target = rig.blocks(0, 2), rig.blocks(32, 2)
        go_on = rig.stall(stream)
        rig.write(stream, source, 3)
        store = rig.worker.submit_store(1, GPULoadStoreSpec(source), rig.slots([0, 1]), after=stream)
        go_on()
        assert (await store).success
        await rig.worker.submit_load(2, rig.slots([0, 1]), GPULoadStoreSpec(target), after=stream)
        assert await rig.read(stream, target) == rig.values(source, 3)

    @pytest.mark.parametrize("as_current", [False, True])
    async def test_an_overwrite_right_after_submit_store_is_not_seen(self, rig: WorkerRig, as_current: bool) -> None:
        """Fault 2: the overwrite is enqueued before any await."""
        stream = rig.device.create_stream()
        source, target = rig.blocks(0, 4), rig.blocks(32, 4)
        rig.write(stream, source, 3)
        with rig.device.use(stream):
            after = None if as_current else stream
            store = rig.worker.submit_store(1, GPULoadStoreSpec(source), rig.slots([0, 1, 2, 3]), after=after)
        rig.write(stream, source, 99)
        assert (await store).success
        await rig.worker.submit_load(2, rig.slots([0, 1, 2, 3]), GPULoadStoreSpec(target), after=stream)
        assert await rig.read(stream, target) == rig.values(source, 3)

    async def test_a_load_overwrites_only_when_nobody_reads(self, rig: WorkerRig) -> None:
        """I8, fault 2: reads enqueued before the load see the old bytes."""
        stream = rig.device.create_stream()
        source, target = rig.blocks(0, 2), rig.blocks(32, 2)
        rig.write(stream, source, 3)
        rig.write(stream, target, 50)
        await rig.worker.submit_store(1, GPULoadStoreSpec(source), rig.slots([0, 1]), after=stream)
        go_on = rig.stall(stream)
        before = asyncio.ensure_future(rig.read(stream, target))
        await asyncio.sleep(0)
        load = rig.worker.submit_load(2, rig.slots([0, 1]), GPULoadStoreSpec(target), after=stream)
        go_on()
        assert await before == rig.values(target, 50)
        assert (await load).success
        assert await rig.read(stream, target) == rig.values(source, 3)

    @pytest.mark.parametrize("expedited", [False, True])
    async def test_a_fenced_stream_reads_loaded_bytes(self, rig: WorkerRig, expedited: bool) -> None:
        """Fault 2: the host does not wait for the copy, the stream does."""
        stream, reader = rig.device.create_stream(), rig.device.create_stream()
        source, target = rig.blocks(0, 2), rig.blocks(32, 2)
        rig.write(stream, source, 3)
        await rig.worker.submit_store(1, GPULoadStoreSpec(source), rig.slots([0, 1]), after=stream)
        go_on = rig.stall(stream)
        load = rig.worker.submit_load(2, rig.slots([0, 1]), GPULoadStoreSpec(target), after=stream, expedited=expedited)
        await load.fence(reader)
        read = asyncio.ensure_future(rig.read(reader, target))
        go_on()
        assert await read == rig.values(source, 3)
        assert (await load).success

    async def test_jobs_that_share_a_slot_run_in_submission_order(self, rig: WorkerRig) -> None:
        """I8, fault 4: store, load, store, load through one slot, all submitted at once, on several streams."""
        stream = rig.device.create_stream()
        first, second = rig.blocks(0, 1), rig.blocks(rig.blocks_per_chunk, 1)
        targets = rig.blocks(32, 1), rig.blocks(32 + rig.blocks_per_chunk, 1)
        rig.write(stream, first, 3)
        rig.write(stream, second, 100)
        go_on = rig.stall(stream)
        slot = rig.slots([0])
        jobs = [
            rig.worker.submit_store(1, GPULoadStoreSpec(first), slot, after=stream, protect_source=False),
            rig.worker.submit_load(2, slot, GPULoadStoreSpec(targets[0]), after=stream),
            rig.worker.submit_store(3, GPULoadStoreSpec(second), slot, after=stream, protect_source=False),
            rig.worker.submit_load(4, slot, GPULoadStoreSpec(targets[1]), after=stream, expedited=True),
        ]
        go_on()
        assert all([(await job).success for job in jobs])
        assert await rig.read(stream, targets[0]) == rig.values(first, 3)
        assert await rig.read(stream, targets[1]) == rig.values(second, 100)

    async def test_jobs_that_share_a_block_run_in_submission_order(self, rig: WorkerRig) -> None:
        """I8: two loads of different streams into one block, then a store out of it."""
        stream = rig.device.create_stream()
        source, target, last = rig.blocks(0, 2), rig.blocks(32, 1), rig.blocks(48, 1)
        rig.write(stream, source, 3)
        await rig.worker.submit_store(1, GPULoadStoreSpec(source), rig.slots([0, 1]), after=stream)
        go_on = rig.stall(stream)
        jobs = [
            rig.worker.submit_load(2, rig.slots([0]), GPULoadStoreSpec(target), after=stream),
            rig.worker.submit_load(3, rig.slots([1]), GPULoadStoreSpec(target), expedited=True),
            rig.worker.submit_store(4, GPULoadStoreSpec(target), rig.slots([2]), protect_source=False),
            rig.worker.submit_load(5, rig.slots([2]), GPULoadStoreSpec(last)),
        ]
        go_on()
        assert all([(await job).success for job in jobs])
        assert await rig.read(stream, last) == rig.values(source[rig.blocks_per_chunk :], 3)

    async def test_a_load_may_begin_and_end_inside_a_chunk(self, rig: WorkerRig) -> None:
        """Fault 47: the exact sub-range arrives, its neighbours stay untouched."""
        if rig.blocks_per_chunk < 2:
            pytest.skip("chunks of one block have no inside")
        stream = rig.device.create_stream()
        source = rig.blocks(0, 2)
        wanted = source[1:-1]
        area = list(range(32, 32 + len(source)))
        rig.write(stream, source, 3)
        rig.write(stream, area, 77)
        slots = rig.slots([4, 1])
        await rig.worker.submit_store(1, GPULoadStoreSpec(source), slots, after=stream)
        target = GPULoadStoreSpec(area[1:-1], None, [rig.blocks_per_chunk * 5 + 1])
        assert (await rig.worker.submit_load(2, slots, target, after=stream)).success
        assert await rig.read(stream, area[1:-1]) == rig.values(wanted, 3)
        edges = [area[0], area[-1]]
        assert await rig.read(stream, edges) == rig.values(edges, 77)

    async def test_a_load_sees_later_changes_of_no_argument(self, rig: WorkerRig) -> None:
        """Fault 39: the ids are the worker's own from the call on."""
        stream = rig.device.create_stream()
        source, target = rig.blocks(0, 1), rig.blocks(32, 1)
        rig.write(stream, source, 3)
        blocks = GPULoadStoreSpec(np.array(source))
        store = rig.worker.submit_store(1, blocks, rig.slots([0]), after=stream, protect_source=False)
        blocks.block_ids[:] = 0
        await store
        await rig.worker.submit_load(2, rig.slots([0]), GPULoadStoreSpec(target), after=stream)
        assert await rig.read(stream, target) == rig.values(source, 3)

    async def test_zero_blocks_succeed(self, rig: WorkerRig) -> None:
        """Fault 48."""
        store = await rig.worker.submit_store(1, GPULoadStoreSpec([]), rig.slots([]))
        load = await rig.worker.submit_load(2, rig.slots([]), GPULoadStoreSpec([]))
        assert (store.success, store.transfer_size, load.success) == (True, 0, True)

    async def test_wrong_ids_are_refused_before_anything_moves(self, rig: WorkerRig) -> None:
        """Fault 48."""
        one, two = rig.blocks(0, 1), rig.blocks(0, 2)
        stores = [
            (rig.blocks(rig.num_blocks, 1), [0]),
            (two[: rig.blocks_per_chunk] * 2, [0, 1]),
            (two, [0, 0]),
            (one, [rig.num_slots]),
            (one, [0, 1]),
            (one, []),
        ]
        for block_ids, slots in stores:
            with pytest.raises(ArgumentError):
                rig.worker.submit_store(1, GPULoadStoreSpec(block_ids), rig.slots(slots))
            with pytest.raises(ArgumentError):
                rig.worker.submit_load(1, rig.slots(slots), GPULoadStoreSpec(block_ids))
        with pytest.raises(ArgumentError):
            rig.worker.validate_blocks(GPULoadStoreSpec([rig.num_blocks]))
        with pytest.raises(ArgumentError, match="src"):
            rig.worker.submit_store(1, None, rig.slots([]))  # type: ignore[arg-type] # as an untyped caller may
        for group_idx in (-1, 1):
            with pytest.raises(ArgumentError, match="group_idx"):
                rig.worker.fragments_per_chunk(group_idx)
        if rig.blocks_per_chunk > 1:
            with pytest.raises(ArgumentError, match="whole chunks"):
                rig.worker.submit_store(1, GPULoadStoreSpec(one[:-1]), rig.slots([0]))
        assert (await rig.worker.submit_store(1, GPULoadStoreSpec(one), rig.slots([0]))).success

    async def test_a_number_in_use_is_refused_until_its_job_has_ended(self, rig: WorkerRig) -> None:
        stream = rig.device.create_stream()
        go_on = rig.stall(stream)
        store = rig.worker.submit_store(1, GPULoadStoreSpec(rig.blocks(0, 1)), rig.slots([0]), after=stream)
        with pytest.raises(ArgumentError, match="job_id"):
            rig.worker.submit_load(1, rig.slots([1]), GPULoadStoreSpec(rig.blocks(32, 1)))
        go_on()
        await store
        assert (await rig.worker.submit_load(1, rig.slots([0]), GPULoadStoreSpec(rig.blocks(32, 1)))).success

    async def test_a_cancelled_waiter_detaches_itself_only(self, rig: WorkerRig) -> None:
        """I2, fault 19."""
        stream = rig.device.create_stream()
        go_on = rig.stall(stream)
        load = rig.worker.submit_load(1, rig.slots([0]), GPULoadStoreSpec(rig.blocks(32, 1)), after=stream)
        told: list[bool] = []
        load.on_done(lambda result: told.append(result.success))
        leaver, stayer = asyncio.ensure_future(_result(load)), asyncio.ensure_future(_result(load))
        await asyncio.sleep(0)
        leaver.cancel()
        await asyncio.wait([leaver])
        assert leaver.cancelled()
        go_on()
        assert await stayer
        assert (told, load.result is not None) == ([True], True)

    async def test_a_bound_worker_belongs_to_its_loop(self, rig: WorkerRig) -> None:
        async def use_elsewhere() -> None:
            for use in (rig.worker.bind, lambda: rig.worker.submit_store(1, GPULoadStoreSpec([]), rig.slots([]))):
                with pytest.raises(ModeError):
                    use()

        rig.worker.bind()
        rig.worker.bind()
        await asyncio.to_thread(asyncio.run, use_elsewhere())
        with pytest.raises(ModeError):
            await asyncio.to_thread(rig.worker.bind)
        with pytest.raises(ModeError):
            rig.worker.close()
        assert (await rig.worker.submit_store(1, GPULoadStoreSpec([]), rig.slots([]))).success

    async def test_a_close_waits_for_the_copies_and_refuses_new_jobs(self, rig: WorkerRig) -> None:
        """I1, I2."""
        stream = rig.device.create_stream()
        go_on = rig.stall(stream)
        load = rig.worker.submit_load(1, rig.slots([0]), GPULoadStoreSpec(rig.blocks(32, 1)), after=stream)
        closing = asyncio.ensure_future(rig.worker.aclose())
        await asyncio.sleep(0)
        with pytest.raises(ClosedError):
            rig.worker.submit_load(2, rig.slots([0]), GPULoadStoreSpec(rig.blocks(32, 1)))
        go_on()
        await closing
        assert load.result is not None
        assert load.result.success


async def _result(transfer: object) -> bool:
    return (await transfer).success  # type: ignore[misc, no-any-return] # a Transfer
