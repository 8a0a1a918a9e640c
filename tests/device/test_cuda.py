"""What only a GPU can show; skipped without one."""

import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from aiokvoffload.base import Event, Stream
from aiokvoffload.device.cuda import AcceleratorDevice
from aiokvoffload.device.open import open_device
from aiokvoffload.errors import BrokenError

pytestmark = pytest.mark.gpu
CYCLES = 50_000_000


@pytest.fixture
def device() -> Iterator[AcceleratorDevice]:
    opened = open_device("auto")
    assert isinstance(opened, AcceleratorDevice)
    yield opened
    opened.close()


def _discard(_: torch.Tensor) -> None:
    pass


def sleep() -> None:
    torch.cuda._sleep(CYCLES)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("kind", [torch.cuda.Stream, torch.Stream])
def test_streams_and_events_of_both_of_torchs_kinds_may_meet(device: AcceleratorDevice, kind: type) -> None:
    """Mixed the wrong way round they make torch read memory of the wrong type."""
    theirs, ours = kind(device.torch_device), device.create_stream()
    device.enqueue(theirs, sleep)
    ours_after = device.record(theirs)
    assert not device.query(ours_after)
    device.wait(ours, ours_after)
    their_event = torch.Event(device.torch_device)
    their_event.record(theirs)
    device.wait(ours, their_event)
    cuda_event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
    cuda_event.record(torch.cuda.current_stream())
    device.wait(ours, cuda_event)
    for end in (device.record(ours), device.mark(ours)):
        device.wait(theirs, end)
        assert not device.query(end)
    end.synchronize()
    assert device.query(end)
    theirs.synchronize()


def test_a_stream_of_torchs_waits_for_a_quick_mark_as_for_its_own(device: AcceleratorDevice) -> None:
    """Whoever writes the number before the other has slept reads too early."""
    stream: Any = torch.cuda.Stream(device.torch_device)  # type: ignore[no-untyped-call]
    number = torch.zeros(1, device=device.torch_device)
    torch.cuda.synchronize()
    ours = device.create_stream()
    device.enqueue(ours, sleep)
    device.enqueue(ours, lambda: _discard(number.fill_(1.0)))
    stream.wait_event(device.mark(ours))
    device.enqueue(stream, lambda: _discard(number.mul_(5.0)))
    device.record(stream).synchronize()
    assert number.item() == 5.0


def test_a_mark_may_be_let_go_of_before_it_is_reached(device: AcceleratorDevice) -> None:
    """Its event marks something else by then, and the wait is still for the old mark."""
    stream, other, idle = (device.create_stream() for _ in range(3))
    device.enqueue(stream, sleep)
    mark: Any = device.mark(stream)
    device.wait(other, mark)
    event = mark.cuda_event
    del mark
    again: Any = device.mark(idle)
    assert again.cuda_event == event
    end = device.mark(other)
    again.synchronize()
    assert not device.query(end)
    end.synchronize()
    assert device.query(end)


@pytest.mark.parametrize("makes_current", [(), (-1,)])
def test_marks_answer_threads_that_have_another_device_or_none(
    device: AcceleratorDevice, makes_current: tuple[int, ...]
) -> None:
    """And one that is none at all is an error there too, and no answer."""
    if makes_current and torch.cuda.device_count() < 2:
        pytest.skip("needs a second CUDA device")
    stream = device.create_stream()
    start = device.mark(stream)
    device.enqueue(stream, sleep)
    end = device.mark(stream)
    answers: list[object] = []

    def ask() -> None:
        for _ in makes_current:
            torch.cuda.set_device(torch.cuda.device_count() - 1)
        try:
            answers.append(device.query(end))
            cast("Any", end).synchronize()
            answers.append(device.query(end))
            answers.append(device.elapsed_s(start, end))
            device.elapsed_s(end, cast("Any", SimpleNamespace(cuda_event=0)))
        except Exception as error:  # noqa: BLE001 - asserted below
            answers.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert answers[:2] == [False, True]
    assert answers[2] == device.elapsed_s(start, end)
    assert isinstance(answers[3], BrokenError)


def test_work_enqueued_goes_to_its_stream_and_the_thread_keeps_its_own(device: AcceleratorDevice) -> None:
    stream, before = device.create_stream(), device.current_stream()
    device.enqueue(stream, sleep)
    end = device.record(stream)
    device.record(before).synchronize()
    assert not device.query(end)
    assert device.current_stream() == before
    end.synchronize()


@pytest.mark.parametrize("mark", [AcceleratorDevice.record, AcceleratorDevice.mark])
def test_completion_is_dated_in_the_hosts_time(
    device: AcceleratorDevice, mark: Callable[[AcceleratorDevice, Stream], Event]
) -> None:
    device.synchronize_clock()
    stream = device.create_stream()
    start = mark(device, stream)
    device.enqueue(stream, sleep)
    end = mark(device, stream)
    before_s = time.perf_counter()
    end.synchronize()
    after_s = time.perf_counter()
    assert before_s - 1e-3 < device.completed_at(end) < after_s + 1e-3
    assert abs(device.completed_at(end) - device.completed_at(start) - device.elapsed_s(start, end)) < 1e-5


def test_memory_is_pinned_and_a_refusal_leaves_no_error_pending(device: AcceleratorDevice) -> None:
    """Fault 37."""
    with pytest.raises(OSError, match="CUDA_ERROR"):
        device.pin(1 << 44, 4096)
    assert float(torch.ones(4, device=device.torch_device).sum()) == 4.0


def test_a_thread_that_never_touched_cuda_may_use_the_driver(device: AcceleratorDevice) -> None:
    buffer = torch.zeros(1 << 20, dtype=torch.uint8)
    address = -(-buffer.data_ptr() // 4096) * 4096
    errors: list[Exception] = []

    def pin() -> None:
        try:
            device.pin(address, 4096)
            device.unpin(address, 4096)
        except OSError as error:
            errors.append(error)

    thread = threading.Thread(target=pin)
    thread.start()
    thread.join()
    assert not errors


def test_the_node_of_the_gpu_is_a_number_or_not_known(device: AcceleratorDevice) -> None:
    node = device.numa_node()
    assert node is None or node >= 0
