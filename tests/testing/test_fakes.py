"""The fakes keep their own promises: a test that uses them must be able to fail."""

import asyncio
import threading

import pytest

from aiokvoffload.base import GPULoadStoreSpec
from aiokvoffload.config import Mode
from aiokvoffload.cpu.common import CPULoadStoreSpec
from aiokvoffload.errors import ArgumentError, BrokenError, ClosedError, ModeError, TransferError
from aiokvoffload.testing import ManualClock, ManualDevice, MockOffloadingWorker


def test_a_manual_device_runs_one_piece_of_work_at_a_time() -> None:
    device, seen = ManualDevice(), list[str]()
    first, second = device.create_stream(), device.create_stream()
    first.enqueue(lambda: seen.append("a"))
    second.wait_event(first.record_event())
    second.enqueue(lambda: seen.append("b"))
    end = second.record_event()
    assert (seen, device.pending_work, end.query()) == ([], 2, False)
    assert device.step()
    assert (seen, end.query()) == (["a"], False)
    assert (device.run_all(), seen, end.query(), device.step()) == (1, ["a", "b"], True, False)


def test_a_manual_device_can_run_freely() -> None:
    device, seen = ManualDevice(hold=False), list[int]()
    stream = device.create_stream()
    stream.enqueue(lambda: seen.append(1))
    device.hold()
    stream.enqueue(lambda: seen.append(2))
    assert seen == [1]
    device.release()
    assert seen == [1, 2]


def test_a_manual_device_refuses_and_breaks_when_told() -> None:
    device = ManualDevice()
    stream = device.create_stream()
    device.refuse_next_copy()
    with pytest.raises(TransferError):
        device.enqueue(stream, lambda: None)
    device.enqueue(stream, lambda: None)
    event = device.record(stream)
    device.break_down()
    with pytest.raises(BrokenError):
        device.query(event)
    with pytest.raises(BrokenError):
        device.record(stream)


def test_held_submissions_hold_other_threads_only() -> None:
    device = ManualDevice()
    stream = device.create_stream()
    device.hold_submissions()
    other = threading.Thread(target=lambda: device.enqueue(stream, lambda: None))
    other.start()
    device.enqueue(stream, lambda: None)
    assert (device.pending_work, other.is_alive()) == (1, True)
    device.release_submissions()
    other.join()
    assert device.pending_work == 2


async def test_a_manual_clock_stands_still() -> None:
    clock = ManualClock()
    sleeper = asyncio.ensure_future(clock.sleep_until(10.0))
    await clock.wait_for_sleeper()
    clock.advance(9.0)
    await asyncio.sleep(0)
    assert (sleeper.done(), clock.sleepers) == (False, 1)
    clock.advance(1.0)
    await sleeper
    await clock.sleep_until(5.0)
    assert repr(clock) == "ManualClock(10.0 s, 0 sleeping)"


async def test_a_mock_worker_ends_transfers_by_hand() -> None:
    worker = MockOffloadingWorker(hold_enqueue=True)
    stream = ManualDevice().create_stream()
    store = worker.submit_store(1, GPULoadStoreSpec([0]), CPULoadStoreSpec([0]))
    load = worker.submit_load(2, CPULoadStoreSpec([0]), GPULoadStoreSpec([1]))
    fence = asyncio.ensure_future(store.fence(stream))
    await asyncio.sleep(0)
    assert not fence.done()
    worker.enqueue(1)
    await fence
    assert [each for each, _ in worker.fenced] == [stream]
    assert not stream.record_event().query()
    worker.release(1)
    await store.released
    worker.finish(1)
    worker.finish(2, failed_indices=[0])
    assert ((await store).success, (await load).failed_indices) == (True, (0,))
    assert (worker.statistics().jobs_failed, worker.statistics().jobs_in_flight) == (1, 0)
    assert repr(worker) == "MockOffloadingWorker(0 in flight, 2 submitted)"


async def test_a_mock_worker_refuses_what_a_real_one_refuses() -> None:
    worker = MockOffloadingWorker()
    worker.submit_store(1, GPULoadStoreSpec([0]), CPULoadStoreSpec([0]))
    with pytest.raises(ArgumentError):
        worker.submit_load(1, CPULoadStoreSpec([0]), GPULoadStoreSpec([1]))
    with pytest.raises(ModeError):
        worker.get_finished()
    worker.submit_error = BrokenError("gone")
    with pytest.raises(BrokenError):
        worker.submit_load(2, CPULoadStoreSpec([0]), GPULoadStoreSpec([1]))
    closing = asyncio.ensure_future(worker.aclose())
    await asyncio.sleep(0)
    assert not closing.done()
    with pytest.raises(ClosedError):
        worker.submit_load(2, CPULoadStoreSpec([0]), GPULoadStoreSpec([1]))
    worker.finish_all()
    await closing


def test_a_mock_worker_can_be_stepped() -> None:
    worker = MockOffloadingWorker(mode=Mode.STEPPED)
    worker.submit_store(1, GPULoadStoreSpec([0]), CPULoadStoreSpec([0]))
    worker.finish_all()
    assert [result.job_id for result in worker.get_finished()] == [1]
    worker.close()
