"""An engine whose loop is a plain thread: one hop each way for a step, whatever it asks."""

import asyncio
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from typing import Any

import pytest
import torch
import uvloop

import aiokvoffload as kv
from aiokvoffload.service.thread import OffloadingThread, open_in_thread
from aiokvoffload.service.thread_calls import (
    CallOutcome,
    CallStage,
    FinishCall,
    LoadCall,
    LookupCall,
    StoreCall,
    ThreadCall,
)

KEYS = [kv.make_offload_key(b"prompt, up to block %d" % block, 0) for block in range(4)]


@pytest.fixture
def blocks() -> torch.Tensor:
    return torch.arange(16 * 1024).reshape(16, 1024).clone()


def caches_of(blocks: torch.Tensor) -> kv.CanonicalKVCaches:
    return kv.CanonicalKVCaches([kv.CanonicalKVCacheTensor(blocks, 8192)], [[kv.CanonicalKVCacheRef(0, 8192)]])


SPEC = kv.CPUOffloadingSpec(kv.CPUOffloadingConfig(cpu_bytes=1 << 20, device="host"))


@pytest.fixture
def offload(blocks: torch.Tensor) -> Iterator[OffloadingThread]:
    with open_in_thread(SPEC, caches_of(blocks)) as offload:
        yield offload


def until_ended(offload: OffloadingThread, *calls: ThreadCall) -> list[CallOutcome]:
    """Steps, as an engine makes them, until each of `calls` has ended; everything that was told meanwhile."""
    return until_told(offload, calls, offload.step(calls))


def until_told(
    offload: OffloadingThread, calls: Sequence[ThreadCall], told: Sequence[CallOutcome] = ()
) -> list[CallOutcome]:
    told = [*told]
    while not {id(call) for call in calls} <= {id(each.call) for each in told if each.stage is CallStage.ENDED}:
        told += offload.step()
    return told


def test_what_one_step_stores_a_later_one_finds_and_loads(offload: OffloadingThread, blocks: torch.Tensor) -> None:
    store = StoreCall("request-1", KEYS, range(4))
    told = until_ended(offload, store)
    assert [(each.call, each.stage) for each in told] == [(store, CallStage.RELEASED), (store, CallStage.ENDED)]
    assert isinstance(told[1].result, kv.StoreResult)
    assert told[1].result.stored == 4
    lookup = LookupCall("request-2", KEYS)
    (answer,) = offload.step([lookup])
    assert (answer.call, answer.result) == (lookup, 4)
    (loaded,) = until_ended(offload, LoadCall("request-2", KEYS, range(8, 12)))
    assert isinstance(loaded.result, kv.LoadResult)
    assert loaded.result.served == 4
    assert blocks[8:12].equal(blocks[:4])
    told = until_ended(offload, FinishCall("request-1"), FinishCall("request-2", abort=True))
    assert [each.error for each in told] == [None, None]


def test_a_copy_starts_after_the_stream_of_the_thread_that_steps(
    offload: OffloadingThread, blocks: torch.Tensor
) -> None:
    """What the engine's thread has enqueued when it steps is what the store must wait for (I8, fault 1)."""
    stream, computed = offload.device.create_stream(), threading.Event()

    def compute() -> None:
        computed.wait()
        blocks[:4] = 7

    offload.device.enqueue(stream, compute)
    with offload.device.use(stream):
        store = StoreCall("request-1", KEYS, range(4))
        assert offload.step([store]) == []
    computed.set()
    until_told(offload, [store])
    until_ended(offload, LoadCall("request-1", KEYS, range(8, 12)))
    assert bool((blocks[8:12] == 7).all())


def test_a_refused_call_is_told_in_its_step_and_the_others_go_on(offload: OffloadingThread) -> None:
    wrong, unknown = StoreCall("request-1", KEYS, range(3)), FinishCall("nobody")
    lookup = LookupCall("request-1", KEYS)
    told = offload.step([wrong, unknown, lookup])
    assert [each.call for each in told] == [wrong, unknown, lookup]
    assert isinstance(told[0].error, kv.ArgumentError)
    assert "'nobody'" in str(told[1].error)
    assert told[2].result == 0


def test_what_is_no_call_is_refused_and_the_others_are_not_made(offload: OffloadingThread) -> None:
    with pytest.raises(kv.ArgumentError, match=r"calls must be LookupCall, .* got 5"):
        offload.step([StoreCall("request-1", KEYS, range(4)), 5])  # type: ignore[list-item]
    for calls in (5, {StoreCall("request-1", KEYS, range(4))}, StoreCall("request-1", KEYS, range(4))):
        with pytest.raises(kv.ArgumentError, match="calls must be a sequence of calls"):
            offload.step(calls)  # type: ignore[arg-type]
    assert "0 requests" in repr(offload)


@pytest.mark.parametrize("req_id", [[], 5, None, ""])
def test_a_call_of_no_request_is_refused_before_any_other_is_made(offload: OffloadingThread, req_id: Any) -> None:
    """It ended the step half way, and the calls behind it were made by nobody and told to nobody."""
    store = StoreCall("request-1", KEYS, range(4))
    with pytest.raises(kv.ArgumentError, match=r"calls\[1\]\.req_id must be a non-empty string, got"):
        offload.step([store, FinishCall(req_id)])
    assert "0 requests, 0 calls" in repr(offload)


def test_calls_may_come_from_a_generator(offload: OffloadingThread) -> None:
    """All of them vanished."""
    store = StoreCall("request-1", KEYS, range(4))
    until_told(offload, [store], offload.step(call for call in [store]))
    assert offload.step([LookupCall("request-1", KEYS)])[0].result == 4


def test_a_call_that_fails_in_an_unforeseen_way_leaves_the_others_of_its_step(
    offload: OffloadingThread, caplog: pytest.LogCaptureFixture
) -> None:
    """Fault 27."""

    class WrongKey(bytes):
        __hash__ = bytes.__hash__

        def __eq__(self, _: object) -> bool:
            raise ValueError("no key")

    until_ended(offload, StoreCall("request-1", KEYS, range(4)))
    broken = LookupCall("request-2", [kv.OffloadKey(WrongKey(KEYS[0]))])
    told = offload.step([broken, LookupCall("request-2", KEYS)])
    assert isinstance(told[0].error, kv.InternalError)
    assert "a LookupCall failed: ValueError('no key')" in str(told[0].error)
    assert told[1].result == 4
    assert "a call of request 'request-2' failed" in caplog.text


def test_closing_aborts_what_is_open(blocks: torch.Tensor) -> None:
    with open_in_thread(SPEC, caches_of(blocks), loop_factory=uvloop.new_event_loop) as offload:
        offload.step([StoreCall("request-1", KEYS, range(4)), LookupCall("request-2", KEYS)])
        assert "open, 2 requests, 2 calls in 1 steps" in repr(offload)
    assert "closed, 0 requests" in repr(offload)
    with pytest.raises(kv.ClosedError, match="not open"):
        offload.step()
    offload.close()
    with pytest.raises(kv.ClosedError, match="opened once"), offload:
        pass


def test_a_step_that_meets_a_close_by_another_thread_is_told_so(blocks: torch.Tensor) -> None:
    def step_for_good(offload: OffloadingThread) -> None:
        while True:
            offload.step()
            stepped.set()

    with ThreadPoolExecutor(1) as engine:
        for _ in range(20):
            stepped = threading.Event()
            with open_in_thread(SPEC, caches_of(blocks), step_timeout_s=5) as offload:
                stepping = engine.submit(step_for_good, offload)
                assert stepped.wait(5)
            with pytest.raises(kv.ClosedError):
                stepping.result()


def test_everything_else_of_the_service_is_run_on_its_thread(offload: OffloadingThread) -> None:
    until_ended(offload, StoreCall("request-1", KEYS, range(4)))
    cleared = offload.run(lambda service: service.reset())
    assert cleared.cleared_by_tier == (("cpu", 4),)


@pytest.mark.parametrize(
    ("error", "raised"),
    [(TimeoutError(), TimeoutError), (asyncio.CancelledError(), CancelledError), (KeyError(), KeyError)],
)
def test_what_a_function_raises_running_it_raises(
    offload: OffloadingThread, error: BaseException, raised: type[Exception]
) -> None:
    """A time-out of its own was said to be a dead loop, a cancellation a close."""

    async def fail(_: kv.OffloadingService) -> None:
        raise error

    with pytest.raises(raised):
        offload.run(fail)
    assert offload.step() == []


def test_a_function_that_runs_at_the_close_is_told_of_it(blocks: torch.Tensor) -> None:
    started = threading.Event()

    async def wait_for_good(_: kv.OffloadingService) -> None:
        started.set()
        await asyncio.Event().wait()

    with ThreadPoolExecutor(1) as engine:
        with open_in_thread(SPEC, caches_of(blocks), step_timeout_s=5) as offload:
            running = engine.submit(offload.run, wait_for_good)
            assert started.wait(5)
        with pytest.raises(kv.ClosedError, match="closed by another thread meanwhile"):
            running.result()


def test_what_opening_raises_entering_raises(blocks: torch.Tensor) -> None:
    spec = kv.CPUOffloadingSpec(kv.CPUOffloadingConfig(cpu_bytes=1, device="host"))
    with pytest.raises(kv.ConfigError), open_in_thread(spec, caches_of(blocks)):
        pass


@pytest.mark.parametrize("step_timeout_s", [0, float("inf"), float("nan"), 10**400, "5"])
def test_a_time_out_that_no_lock_takes_is_refused(blocks: torch.Tensor, step_timeout_s: Any) -> None:
    with pytest.raises(kv.ArgumentError, match="step_timeout_s must be a number above 0 and at most 1000000000, got"):
        open_in_thread(SPEC, caches_of(blocks), step_timeout_s=step_timeout_s)


def test_a_loop_that_does_not_answer_is_said_to_be_broken(blocks: torch.Tensor) -> None:
    goes_on = threading.Event()

    async def block(_: kv.OffloadingService) -> None:
        goes_on.wait()

    with open_in_thread(SPEC, caches_of(blocks), step_timeout_s=0.05) as offload:
        with pytest.raises(kv.BrokenError, match=r"within 0\.05 s"):
            offload.run(block)
        goes_on.set()
