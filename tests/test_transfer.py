import asyncio
import logging
from functools import partial

import pytest

from aiokvoffload.base import Event, Stream, TransferResult
from aiokvoffload.config import Mode
from aiokvoffload.device.host import HostEvent
from aiokvoffload.errors import AbandonedError, ArgumentError, BrokenError, ModeError, TransferError
from aiokvoffload.testing import ManualDevice
from aiokvoffload.transfer import JobTransfer, Latch

GOOD = TransferResult(1, True, 10, 0.5)
BAD = TransferResult(1, False, 10, 0.0, (0,), "lost")


async def outcome(transfer: JobTransfer) -> TransferResult:
    return await transfer


async def test_each_waiter_is_told_and_a_cancelled_one_detaches_itself_only() -> None:
    """I2."""
    transfer = JobTransfer(1)
    waiters = [asyncio.ensure_future(outcome(transfer)) for _ in range(3)]
    await asyncio.sleep(0)
    waiters[1].cancel()
    transfer.finish(GOOD)
    assert (await waiters[0], await waiters[2], await transfer) == (GOOD, GOOD, GOOD)
    assert waiters[1].cancelled()


async def test_the_first_result_stands() -> None:
    """I1."""
    transfer, told = JobTransfer(1), list[bool]()
    transfer.on_done(lambda result: told.append(result.success))
    transfer.finish(GOOD)
    transfer.finish(BAD)
    assert (transfer.result, told) == (GOOD, [True])


async def test_blocks_are_released_once_and_before_or_with_the_result() -> None:
    transfer, told = JobTransfer(1), list[str]()
    transfer.on_released(lambda: told.append("released"))
    transfer.release()
    transfer.release()
    await transfer.released
    assert (told, transfer.result) == (["released"], None)
    transfer.on_released(lambda: told.append("at once"))
    assert told == ["released", "at once"]
    assert repr(transfer) == "JobTransfer(job 1, running, released)"


async def test_a_fence_on_a_job_that_could_not_be_enqueued_names_the_reason() -> None:
    transfer, stream = JobTransfer(1), ManualDevice().create_stream()
    fence = asyncio.ensure_future(transfer.fence(stream))
    await asyncio.sleep(0)
    transfer.mark_enqueued(HostEvent(), failure="refused")
    with pytest.raises(TransferError, match="refused"):
        await fence
    late = JobTransfer(2)
    late.release()
    late.finish(BAD)
    with pytest.raises(TransferError, match="lost"):
        await late.fence(stream)


async def test_a_fence_on_an_ended_job_waits_for_nothing() -> None:
    transfer, stream = JobTransfer(1), ManualDevice().create_stream()
    pending = HostEvent()
    pending.record()
    transfer.mark_enqueued(pending)
    transfer.finish(GOOD)
    await transfer.fence(stream)
    assert stream.record_event().query()


async def test_a_fence_on_a_partly_enqueued_job_holds_the_stream_before_it_raises() -> None:
    """I2, fault 2: what is computed instead must not be overwritten by the part that runs."""
    transfer, stream, end = JobTransfer(1), ManualDevice().create_stream(), HostEvent()
    end.record()
    transfer.mark_enqueued(end, failure="refused")
    with pytest.raises(TransferError, match="refused"):
        await transfer.fence(stream)
    assert not stream.record_event().query()


async def test_a_fence_on_a_failed_job_whose_copies_may_run_holds_the_stream_too() -> None:
    """I2: a worker that broke tells the result before anybody knows that the copies have ended."""
    transfer, stream, end = JobTransfer(1), ManualDevice().create_stream(), HostEvent()
    end.record()
    transfer.mark_enqueued(end)
    transfer.finish(BAD)
    with pytest.raises(TransferError, match="lost"):
        await transfer.fence(stream)
    assert not stream.record_event().query()


async def test_a_fence_waits_itself_where_there_is_no_mark_or_the_stream_cannot_wait() -> None:
    stream = ManualDevice().create_stream()

    def refuse(stream: Stream, event: Event) -> None:
        raise BrokenError("gone")

    unmarked, unwaitable = JobTransfer(1), JobTransfer(2, wait=refuse)
    unmarked.finish(BAD)
    unwaitable.mark_enqueued(HostEvent())
    for transfer, result in ((unmarked, None), (unwaitable, BAD)):
        fence = asyncio.ensure_future(transfer.fence(stream))
        for _ in range(3):
            await asyncio.sleep(0)
        assert not fence.done()
        transfer.release()
        if result is not None:
            transfer.finish(result)
        with pytest.raises(TransferError, match="lost"):
            await fence


async def test_only_a_stream_is_fenced() -> None:
    for wrong in (None, HostEvent()):
        with pytest.raises(ArgumentError, match="stream must be a stream"):
            await JobTransfer(1).fence(wrong)  # type: ignore[arg-type] # as an untyped caller may


def test_a_waiter_of_a_closed_loop_disturbs_nobody() -> None:
    """Fault 34."""
    latch, opened = Latch(), list[int]()
    latch.on_open(lambda: opened.append(1))
    loop = asyncio.new_event_loop()
    waiting = _wait(latch)
    loop.call_soon(waiting.send, None)
    loop.call_soon(loop.stop)
    loop.run_forever()
    loop.close()
    latch.open()
    assert opened == [1]
    waiting.close()


async def test_a_latch_that_will_never_open_says_so() -> None:
    latch, called = Latch(), list[int]()
    latch.on_open(lambda: called.append(1))
    waiter = asyncio.ensure_future(_wait(latch))
    await asyncio.sleep(0)
    latch.never(AbandonedError("left"))
    latch.open()
    for awaitable in (waiter, latch):
        with pytest.raises(AbandonedError):
            await awaitable
    assert (called, latch.opened) == ([], False)


async def test_a_callback_that_raises_is_logged_and_stops_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """Fault 23."""
    latch, called = Latch(), list[int]()
    latch.on_open(partial(called.remove, 7))
    latch.on_open(lambda: called.append(2))
    with caplog.at_level(logging.ERROR):
        latch.open()
    assert called == [2]
    assert "callback" in caplog.text


def test_nothing_is_awaited_in_stepped_mode() -> None:
    transfer = JobTransfer(1, mode=Mode.STEPPED)
    with pytest.raises(ModeError):
        transfer.__await__().send(None)


async def _wait(latch: Latch) -> None:
    await latch
