"""When, by the host's clock, something happened on the device, and how wrong that may be.

Knows events and clocks. The device's own `completed_at` serves the library and is dated about once a second, on another
thread; a benchmark wants the error stated, so it dates marks of its own, before and after what it measures.
"""

import time
from dataclasses import dataclass

from aiokvoffload.base import Event, Stream
from aiokvoffload.device.base import Device

TRIES = 200


@dataclass(frozen=True, slots=True)
class DatedMark:
    """An event whose completion lay within `error_s` of `time_s`, in seconds of `time.perf_counter`."""

    event: Event
    time_s: float
    error_s: float


def date_mark(device: Device, stream: Stream) -> DatedMark:
    """Record many marks on an idle stream, ask each until it has completed, and keep the one that took least.

    A mark completes between the call that records it and the answer that it has: half of that is the error. Blocks for
    some milliseconds. The host device's streams are threads that read the host's clock, so there it is exact.
    """
    if device.torch_device.type == "cpu":
        event = device.record(stream)
        event.synchronize()
        return DatedMark(event, device.completed_at(event), 0.0)
    return min((_date_one(device, stream) for _ in range(TRIES)), key=lambda mark: mark.error_s)


def _date_one(device: Device, stream: Stream) -> DatedMark:
    before_s = time.perf_counter()
    event = device.record(stream)
    while not device.query(event):
        pass
    after_s = time.perf_counter()
    return DatedMark(event, (before_s + after_s) / 2, (after_s - before_s) / 2)


class DeviceClock:
    """Dates events between two marks by both of them, so that the drift of the two clocks drops out.

    Args:
        device: whose events.
        first: a mark before the events.
        last: a mark after them.
    """

    def __init__(self, device: Device, first: DatedMark, last: DatedMark) -> None:
        self._device, self._first = device, first
        self.error_s = max(first.error_s, last.error_s)
        device_s = device.elapsed_s(first.event, last.event)
        self._rate = (last.time_s - first.time_s) / device_s if device_s > 0 else 1.0

    def time_of(self, event: Event) -> float:
        """When it completed, in seconds of `time.perf_counter`."""
        return self._first.time_s + self._rate * self._device.elapsed_s(self._first.event, event)

    def __repr__(self) -> str:
        return f"DeviceClock({self._device!r}, ±{self.error_s * 1e6:.1f} µs)"
