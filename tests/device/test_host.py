import threading
from functools import partial

import pytest
import torch

from aiokvoffload.base import Event
from aiokvoffload.device.base import Device
from aiokvoffload.device.host import HostDevice, HostEvent
from aiokvoffload.device.open import open_device
from aiokvoffload.errors import ArgumentError, BrokenError, ConfigError


def wait_for(gate: threading.Event) -> None:
    gate.wait()


@pytest.fixture
def device() -> HostDevice:
    return HostDevice()


def test_a_stream_runs_its_work_in_order_and_later_than_the_call(device: HostDevice) -> None:
    stream, gate, seen = device.create_stream(), threading.Event(), list[int]()
    stream.enqueue(lambda: seen.append(1) if gate.wait() else None)
    stream.enqueue(lambda: seen.append(2))
    event = stream.record_event()
    assert (seen, event.query()) == ([], False)
    gate.set()
    event.synchronize()
    assert (seen, event.query()) == ([1, 2], True)
    device.close()


def test_a_stream_waits_for_a_mark_of_another(device: HostDevice) -> None:
    first, second, gate, seen = device.create_stream(), device.create_stream(), threading.Event(), list[str]()
    first.enqueue(lambda: seen.append("first") if gate.wait() else None)
    second.wait_event(first.record_event())
    second.enqueue(lambda: seen.append("second"))
    gate.set()
    second.synchronize()
    assert seen == ["first", "second"]
    device.close()


def test_nobody_waits_for_an_event_that_was_not_recorded(device: HostDevice) -> None:
    """Fault 2: the trap that CUDA sets."""
    event, stream = HostEvent(), device.create_stream()
    assert event.query()
    stream.wait_event(event)
    stream.synchronize()
    device.close()


def test_the_current_stream_belongs_to_the_thread(device: HostDevice) -> None:
    stream, seen = device.create_stream(), list[object]()
    default = device.current_stream()
    with device.use(stream):
        assert device.current_stream() is stream
        other = threading.Thread(target=lambda: seen.append(device.current_stream()))
        other.start()
        other.join()
    assert seen == [default]
    assert device.current_stream() is default
    device.close()


def test_record_takes_a_stream_an_event_or_nothing(device: HostDevice) -> None:
    stream, gate = device.create_stream(), threading.Event()
    device.enqueue(stream, partial(wait_for, gate))
    event = device.record(stream)
    assert device.record(event) is event
    with device.use(stream):
        assert not device.record().query()
    assert device.record().query() is not None
    gate.set()
    with pytest.raises(ArgumentError, match="after"):
        device.record("now")  # type: ignore[arg-type]
    device.close()


def test_times_are_those_of_the_marks(device: HostDevice) -> None:
    stream, gate = device.create_stream(), threading.Event()
    start = device.record(stream)
    stream.enqueue(partial(wait_for, gate))
    end = device.record(stream)
    gate.set()
    end.synchronize()
    assert device.elapsed_s(start, end) >= 0
    assert device.completed_at(end) >= device.completed_at(start) > 0
    device.close()


def test_work_that_raises_breaks_its_stream_for_good(device: HostDevice) -> None:
    stream, seen = device.create_stream(), list[int]()
    stream.enqueue(partial(seen.remove, 7))
    stream.enqueue(lambda: seen.append(1))
    event: Event = stream.record_event()
    with pytest.raises(BrokenError, match="ValueError"):
        event.synchronize()
    with pytest.raises(BrokenError):
        device.query(event)
    assert seen == []
    device.close()


def test_a_foreign_stream_is_refused(device: HostDevice) -> None:
    with pytest.raises(ArgumentError, match="host"):
        device.enqueue(object(), lambda: None)  # type: ignore[arg-type]
    device.close()


def test_names_open_devices() -> None:
    host = open_device("host")
    assert (host.name, host.torch_device) == ("host", torch.device("cpu"))
    host.close()
    with pytest.raises(ConfigError, match="auto, cuda, host, got 'tpu'"):
        open_device("tpu")
    if not torch.accelerator.is_available():
        automatic: Device = open_device("auto")
        assert automatic.name == "host"
        automatic.close()
        with pytest.raises(ConfigError, match="finds no CUDA"):
            open_device("cuda")
