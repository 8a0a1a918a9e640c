"""Whatever goes wrong after a job was accepted, it ends once, and not before its copies (I1, I2)."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest import mock

import pytest

from aiokvoffload.base import Event, GPULoadStoreSpec, Stream, Transfer
from aiokvoffload.copy import engine as engine_module
from aiokvoffload.copy.engine import Copies, Lane, RunEngine, Step
from aiokvoffload.copy.plan import CopyPlan
from aiokvoffload.copy.selection import Selection
from aiokvoffload.cpu import submitter as submitter_module
from aiokvoffload.cpu.gpu_worker import CPUOffloadingWorker
from aiokvoffload.errors import ArgumentError, BrokenError, TransferError
from aiokvoffload.testing import ManualDevice
from aiokvoffload.testing.memory import make_worker_rig


def fail_with(error: BaseException) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


class InterruptedEngine(RunEngine):
    """Its calls are interrupted as by Ctrl-C."""

    name = "interrupted"

    def copy(self, plan: CopyPlan, stream: Stream, *, ordered: bool) -> None:
        raise KeyboardInterrupt


class HesitantEngine(RunEngine):
    """Has to wait for the device before each copy; notes which threads it copied on."""

    name = "hesitant"

    def __init__(self) -> None:
        self.copied_by: list[threading.Thread] = []

    def plan(self, selection: Selection, lane: Lane) -> Copies:
        return HesitantCopies(self, super().plan(selection, lane))

    def copy(self, plan: CopyPlan, stream: Stream, *, ordered: bool) -> None:
        self.copied_by.append(threading.current_thread())


class HesitantCopies(Copies):
    """One step that waits, then those of the copies within."""

    def __init__(self, engine: HesitantEngine, within: Copies) -> None:
        self.first_stream, self._within = within.first_stream, within

    def enqueue(self, *, ordered: bool) -> Iterator[Step]:
        yield Step.WAITS
        yield from self._within.enqueue(ordered=ordered)

    def whole_chunks_before(self, run: int) -> int:
        return self._within.whole_chunks_before(run)


class Stage:
    """A worker on a device in the test's hand."""

    def __init__(self, engine: RunEngine | None = None) -> None:
        self.device = ManualDevice()
        self.rig = make_worker_rig(self.device, engine=engine)
        worker = self.rig.worker
        assert isinstance(worker, CPUOffloadingWorker)
        self.worker = worker

    def store(self, job_id: int, block: int, slot: int, *, after: Any = None, protect_source: bool = True) -> Transfer:
        blocks, slots = GPULoadStoreSpec(self.rig.blocks(block, 1)), self.rig.slots([slot])
        return self.worker.submit_store(job_id, blocks, slots, after=after, protect_source=protect_source)

    def load(self, job_id: int, slot: int, block: int) -> Transfer:
        return self.worker.submit_load(job_id, self.rig.slots([slot]), GPULoadStoreSpec(self.rig.blocks(block, 1)))

    async def close(self) -> None:
        self.device.release()
        await self.worker.aclose()
        assert self.worker.statistics().jobs_in_flight == 0


@pytest.mark.parametrize("protect_source", [False, True])
async def test_memory_that_runs_out_while_planning_fails_the_job(
    protect_source: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage()
    with monkeypatch.context() as patch:
        patch.setattr(engine_module, "plan_copies", fail_with(MemoryError("plan")))
        result = await stage.store(1, 0, 0, protect_source=protect_source)
    assert (result.success, result.error) == (False, "MemoryError: plan")
    again = stage.store(1, 0, 0, protect_source=protect_source)
    stage.device.release()
    assert (await again).success
    await stage.close()


@pytest.mark.parametrize("protect_source", [False, True])
async def test_memory_that_runs_out_while_noting_hazards_loses_no_order(
    protect_source: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I8: the failed job has overwritten the marks of the one before it, which a load must still wait for."""
    stage = Stage()
    hazards = stage.worker._machinery.hazards
    enter = hazards.enter

    def enter_and_fail(*arguments: Any) -> list[int]:
        enter(*arguments)
        raise MemoryError("marks")

    first = stage.store(1, 0, 0, protect_source=protect_source)
    with monkeypatch.context() as patch:
        patch.setattr(hazards, "enter", enter_and_fail)
        failed = stage.store(2, 8, 0, protect_source=protect_source)
    load = stage.load(3, 0, 32)
    for transfer in (first, load):
        await transfer.fence(stage.device.create_stream())
    stage.device.step()
    assert (await first).success
    assert (await failed).error == "MemoryError: marks"
    assert load.result is None
    assert stage.device.pending_work == 1
    stage.device.step()
    assert (await load).success
    await stage.close()


@pytest.mark.parametrize("error", [TypeError("no event of mine"), BrokenError("gone")])
async def test_a_caller_whose_stream_cannot_be_made_to_wait_gets_a_failed_transfer(error: Exception) -> None:
    """Fault 2: the caller may overwrite what is being read, so what arrives counts for nothing."""
    stage, wait, waits = Stage(), ManualDevice.wait, list[Stream]()
    caller = stage.device.create_stream()

    def wait_or_fail(stream: Stream, event: Event) -> None:
        if stream is caller:
            waits.append(stream)
            raise error
        wait(stage.device, stream, event)

    stage.device.wait = wait_or_fail  # type: ignore[method-assign]
    store = stage.store(1, 0, 0, after=caller)
    freed: list[int] = []
    store.on_released(lambda: freed.append(stage.device.pending_work))
    for _ in range(20):
        await asyncio.sleep(0)
    assert (len(waits), freed) == (1, [])
    stage.device.release()
    result = await store
    await store.released
    assert (result.success, result.failed_indices, freed) == (False, (0,), [0])
    assert str(error) in result.error
    await stage.close()


class HalfStream:
    """Like a stream, but for waiting."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def record_event(self) -> Event:
        return self._stream.record_event()


async def test_what_is_only_half_a_stream_is_refused_before_anything_is_accepted() -> None:
    stage = Stage()
    with pytest.raises(ArgumentError, match="after must be a stream"):
        stage.store(1, 0, 0, after=HalfStream(stage.device.create_stream()))
    unusable: list[Any] = ["1", None, []]
    for job_id in unusable:
        with pytest.raises(ArgumentError, match="job_id"):
            stage.store(job_id, 0, 0)
    assert stage.worker.statistics().jobs_in_flight == 0
    await stage.close()


async def test_an_interrupted_driver_call_is_raised_here_and_fails_its_job_there() -> None:
    stage = Stage(engine=InterruptedEngine())
    with pytest.raises(KeyboardInterrupt):
        stage.store(1, 0, 0)
    assert not any(result.success for result in await stage.worker.wait([1]))
    stage.device.hold_submissions()  # or it would be enqueued here
    load = stage.load(2, 1, 32)
    stage.device.release_submissions()
    assert (await load).error.startswith("KeyboardInterrupt")
    with pytest.raises(TransferError):
        await load.fence(stage.device.create_stream())
    await stage.close()


async def test_a_submission_thread_that_has_ended_breaks_the_worker_and_hangs_nobody() -> None:
    """I1, fault 27."""
    stage = Stage()
    first = stage.load(1, 0, 32)
    await first.fence(stage.device.create_stream())
    await asyncio.to_thread(stage.worker._machinery.submissions[0].stop)
    stage.device.hold_submissions()  # or it would be enqueued here
    load = stage.load(2, 1, 40)
    stage.device.release_submissions()
    stage.device.release()
    for transfer in (first, load):
        assert "submission thread" in (await transfer).error
        await transfer.released
    with pytest.raises(BrokenError):
        stage.store(3, 8, 2)
    await stage.close()


async def test_a_small_job_is_enqueued_before_the_call_returns_while_the_threads_are_idle() -> None:
    """A thread would come a tenth of a millisecond later, which is as long as the copy takes."""
    stage = Stage()
    load = stage.load(1, 0, 32)
    assert stage.device.pending_work
    stage.device.release()
    assert (await load).success
    await stage.close()


@pytest.mark.parametrize("kind", ["load", "store", "protected store"])
async def test_a_small_job_that_has_ended_is_over_when_the_call_returns(kind: str) -> None:
    """The loop would look for it on its next turn, which comes later than the copy takes."""
    stage = Stage()
    first = stage.load(1, 2, 40)
    stage.device.release()
    assert stage.load(2, 3, 44).result is None  # the first one's end belongs to the loop, and nobody overtakes it
    assert (await first).success
    await asyncio.sleep(0)
    transfer = stage.load(3, 0, 32) if kind == "load" else stage.store(3, 8, 0, protect_source=kind != "store")
    assert transfer.result is not None
    assert transfer.result.success
    told: list[int] = []
    transfer.on_done(lambda result: told.append(result.job_id))
    assert (told, await transfer) == ([3], transfer.result)
    await transfer.fence(stage.device.create_stream())
    await stage.close()


async def test_whoever_submits_the_next_from_the_callback_of_the_last_comes_back_from_it() -> None:
    """A chain of calls would end in an error of the interpreter, which looks like one of the device."""
    stage = Stage()
    stage.device.release()
    begun, nested, deepest = 0, 0, 0

    def submit_next(*_: object) -> None:
        nonlocal begun, nested, deepest
        begun, nested = begun + 1, nested + 1
        deepest = max(deepest, nested)
        if begun < 100:
            stage.load(begun, 0, 32).on_done(submit_next)
        nested -= 1

    submit_next()
    while begun < 100:
        await asyncio.sleep(0)
    assert deepest <= 2
    await stage.close()


async def test_whoever_awaits_small_jobs_in_a_row_leaves_others_their_turns() -> None:
    """I10."""
    stage = Stage()
    stage.device.release()
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    for number in range(100):
        assert (await stage.store(number, 8, 0)).success
    assert turns >= 50
    counting.cancel()
    await asyncio.wait([counting])
    await stage.close()


@pytest.mark.parametrize("reason", ["fragments", "jobs", "the device"])
async def test_what_may_take_long_is_left_to_the_thread(reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """I10."""
    stage = Stage()
    if reason == "the device":
        stage.device.hold_submissions()
    else:
        monkeypatch.setattr(submitter_module, f"FEW_{reason.upper()}", 0)
    load = stage.load(1, 0, 32)
    assert (stage.worker._submitter._jobs_there, load.result) == ([1, 0], None)
    stage.device.release_submissions()
    stage.device.release()
    assert (await load).success
    await stage.close()


async def test_a_small_job_does_not_overtake_one_that_the_thread_has() -> None:
    """I8: one thread at a time feeds a stream."""
    stage = Stage()
    stage.device.hold_submissions()
    first = stage.load(1, 0, 32)
    # The gate opens for the thread when both are submitted, but it is no reason any more to give it the second.
    with mock.patch.object(ManualDevice, "wants_thread", False):
        second = stage.load(2, 1, 40)
        assert not stage.device.pending_work
    ended: list[int] = []
    for transfer in (first, second):
        transfer.on_released(partial(ended.append, transfer.job_id))
    stage.device.release_submissions()
    stage.device.release()
    assert all([(await each).success for each in (first, second)])
    await asyncio.sleep(0)
    assert ended == [1, 2]
    await stage.close()


async def test_a_small_job_waits_for_no_thread_of_the_other_direction() -> None:
    """Beside stores of many fragments, a load that has a thread enqueue it comes a tenth of a millisecond later."""
    stage = Stage()
    stage.device.hold_submissions()
    store = stage.store(1, 8, 2, protect_source=False)
    with mock.patch.object(ManualDevice, "wants_thread", False):
        load = stage.load(2, 0, 32)
        assert stage.device.pending_work == 1
        dependent = stage.load(3, 2, 40)  # reads what the store writes, which is not on the device yet (I8)
        assert stage.device.pending_work == 1
    stage.device.release_submissions()
    stage.device.release()
    assert all([(await each).success for each in (store, load, dependent)])
    await stage.close()


async def test_a_job_that_has_to_wait_for_the_device_goes_on_in_the_thread() -> None:
    """I10: the loop never waits for room in a ring."""
    engine = HesitantEngine()
    stage = Stage(engine=engine)
    load = stage.load(1, 0, 32)
    assert engine.copied_by == []
    stage.device.release()
    assert (await load).success
    assert [thread.name for thread in engine.copied_by] == ["aiokvoffload-loads"]
    await stage.close()
