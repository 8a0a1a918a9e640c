"""What only a GPU can show; skipped without one."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from aiokvoffload.device.cuda import AcceleratorDevice
from aiokvoffload.device.open import open_device

pytestmark = pytest.mark.gpu
CYCLES = 50_000_000


@pytest.fixture
def device() -> Iterator[AcceleratorDevice]:
    opened = open_device("auto")
    assert isinstance(opened, AcceleratorDevice)
    yield opened
    opened.close()


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
    end = device.record(ours)
    device.wait(theirs, end)
    assert not device.query(end)
    end.synchronize()
    assert device.query(end)
    theirs.synchronize()


def test_work_enqueued_goes_to_its_stream_and_the_thread_keeps_its_own(device: AcceleratorDevice) -> None:
    stream, before = device.create_stream(), device.current_stream()
    device.enqueue(stream, sleep)
    end = device.record(stream)
    device.record(before).synchronize()
    assert not device.query(end)
    assert device.current_stream() == before
    end.synchronize()


def test_completion_is_dated_in_the_hosts_time(device: AcceleratorDevice) -> None:
    device.synchronize_clock()
    stream = device.create_stream()
    start = device.record(stream)
    device.enqueue(stream, sleep)
    end = device.record(stream)
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
