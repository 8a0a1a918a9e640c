import pytest

from aiokvoffload.cli.device_clock import DeviceClock, date_mark
from aiokvoffload.device.host import HostDevice


def test_events_are_dated_between_two_marks() -> None:
    device = HostDevice()
    stream = device.create_stream()
    first = date_mark(device, stream)
    event = device.record(stream)
    event.synchronize()
    clock = DeviceClock(device, first, date_mark(device, stream))
    assert clock.error_s == 0.0
    assert clock.time_of(event) == pytest.approx(device.completed_at(event), abs=1e-6)
    device.close()
