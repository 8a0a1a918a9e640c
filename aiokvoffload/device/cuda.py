"""CUDA, and any other accelerator that torch offers.

Knows torch's streams and events. torch has two kinds of each, generic and CUDA's own, and mixing them in the wrong
order reads memory of the wrong type inside torch; here is the one place that knows which may meet which.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch

from aiokvoffload.base import Event, Stream
from aiokvoffload.device.base import Device, Handover, device_failure
from aiokvoffload.device.driver import CudaDriver
from aiokvoffload.device.quick_driver import QuickDriver
from aiokvoffload.device.quick_event import QuickEvent, SpareEvents
from aiokvoffload.device.quick_handover import QuickHandover

_cuda: Any = torch.cuda  # its streams and events have no type annotations

CLOCK_AGE_LIMIT_S = 1.0
"""The device's clock and the host's drift apart by some ten microseconds in a second."""
_PCI_DEVICES = Path("/sys/bus/pci/devices")
CLOCK_TRIES = 4


class AcceleratorDevice(Device):
    """An accelerator that torch knows.

    Attributes:
        driver: the CUDA driver, or `None` on other accelerators (ROCm included).
    """

    def __init__(self, torch_device: torch.device) -> None:
        index = torch_device.index if torch_device.index is not None else torch.accelerator.current_device_index()
        self.torch_device = torch.device(torch_device.type, index)
        self.name = torch_device.type
        self._is_cuda = torch_device.type == "cuda"
        self.driver = CudaDriver(index) if self._is_cuda and torch.version.hip is None else None
        self._quick = None if self.driver is None else QuickDriver(index)
        self._spare_events = None if self._quick is None else SpareEvents(self._quick)
        self._clock_stream = self.create_stream(priority=-1)
        # Replaced as a whole, since another thread may read it meanwhile.
        self._clock: tuple[float, Event] | None = None

    def create_stream(self, *, priority: int = 0) -> Stream:
        """A stream of torch's pool; negative priorities run first."""
        if self._is_cuda:
            return cast("Stream", _cuda.Stream(self.torch_device, priority=priority))
        return torch.Stream(self.torch_device, priority=priority)

    def destroy_stream(self, stream: Stream) -> None:
        """Nothing to do: streams belong to torch's pool."""

    def current_stream(self) -> Stream:
        """This thread's current stream of the device."""
        if self._is_cuda:
            return torch.cuda.current_stream(self.torch_device.index)  # by a device it takes 10 µs
        return torch.accelerator.current_stream(self.torch_device)

    @contextmanager
    def use(self, stream: Stream) -> Iterator[None]:
        """Make `stream` and its device current in this thread."""
        device_index = torch.accelerator.current_device_index()
        previous = torch.accelerator.current_stream(self.torch_device)
        torch.accelerator.set_stream(cast("torch.Stream", stream))
        try:
            yield
        finally:
            torch.accelerator.set_stream(previous)
            torch.accelerator.set_device_index(device_index)

    def enqueue(self, stream: Stream, function: Callable[[], None]) -> None:
        """Run `function` now, so that what it launches goes to `stream`."""
        with self.use(stream):
            function()

    def _record(self, stream: Stream) -> Event:
        # CUDA's own event lets go of the GIL while it is recorded, which may block when the device's queue is full.
        event: Any = (
            _cuda.Event(enable_timing=True) if self._is_cuda else torch.Event(self.torch_device, enable_timing=True)
        )
        event.record(self._own(stream))
        return cast("Event", event)

    def mark(self, stream: Stream) -> Event:
        """By the driver itself, where there is CUDA's."""
        if self._spare_events is None:
            return super().mark(stream)
        try:
            return QuickEvent(self._spare_events, stream)
        except OSError as error:
            raise device_failure("mark", error) from error

    def wait(self, stream: Stream, event: Event) -> None:
        """Make later work of `stream` wait for `event`."""
        try:
            # Asked of the event: a generic stream would take CUDA's own event for a generic one.
            cast("Any", event).wait(self._own(stream))
        except (RuntimeError, OSError) as error:
            raise device_failure("wait", error) from error

    def create_handover(self) -> Handover:
        """By the driver itself, where there is CUDA's."""
        return super().create_handover() if self.driver is None else QuickHandover(self.torch_device.index)

    def _own(self, stream: Any) -> Any:
        """The stream as the kind that both kinds of event understand."""
        if not self._is_cuda or isinstance(stream, torch.cuda.Stream):
            return stream
        return _cuda.Stream(
            stream_id=stream.stream_id, device_index=stream.device_index, device_type=stream.device_type
        )

    def elapsed_s(self, start: Event, end: Event) -> float:
        """Seconds between two completed events, to about half a microsecond."""
        first, last = cast("Any", start), cast("Any", end)
        try:
            if self._quick is None:
                return float(first.elapsed_time(last)) / 1e3
            return self._quick.elapsed_s(first.cuda_event, last.cuda_event)
        except (RuntimeError, OSError) as error:
            raise device_failure("elapsed time", error) from error

    def completed_at(self, event: Event) -> float:
        """Counted from an event whose time on the host is known; now, where there is none."""
        if (clock := self._clock) is None:
            return time.perf_counter()
        base_s, mark = clock
        return base_s + self.elapsed_s(mark, event)

    @property
    def wants_thread(self) -> bool:
        """Whether the base of `completed_at` is a second old, so that `synchronize_clock` would take a new one."""
        return (clock := self._clock) is None or time.perf_counter() - clock[0] >= CLOCK_AGE_LIMIT_S

    def synchronize_clock(self) -> None:
        """Take a new base for `completed_at` when the old one is a second old: the mark that is dated best of a few."""
        if not self.wants_thread:
            return
        _, base_s, mark = min((self._date_a_mark() for _ in range(CLOCK_TRIES)), key=lambda dated: dated[0])
        self._clock = (base_s, mark)

    def _date_a_mark(self) -> tuple[float, float, Event]:
        """How long a mark's completion may have been before or after, when about it was, and the mark."""
        before_s = time.perf_counter()
        mark = self.record(self._clock_stream)
        try:
            mark.synchronize()
        except (RuntimeError, OSError) as error:
            raise device_failure("synchronize", error) from error
        after_s = time.perf_counter()
        return (after_s - before_s) / 2, (before_s + after_s) / 2, mark

    def pin(self, address: int, size_bytes: int) -> None:
        """Register the pages: twice as fast where all of them are there already."""
        if self.driver is None:
            raise OSError(f"no way to register memory with {self.name}")
        self.driver.register(address, size_bytes)

    def unpin(self, address: int, size_bytes: int) -> None:
        """Unregister the range."""
        if self.driver is not None:
            self.driver.unregister(address)

    def numa_node(self) -> int | None:
        """The node that the GPU's PCI slot belongs to, where the kernel tells."""
        if not self._is_cuda:
            return None
        properties: Any = _cuda.get_device_properties(self.torch_device)
        if not hasattr(properties, "pci_bus_id"):
            return None
        slot = f"{properties.pci_domain_id:04x}:{properties.pci_bus_id:02x}:{properties.pci_device_id:02x}.0"
        return _node_of_pci_device(_PCI_DEVICES / slot)

    def close(self) -> None:
        """Let go of the driver's context."""
        self._clock = None
        if self._spare_events is not None:
            self._spare_events.close()
        drivers = (self.driver, self._quick)
        self.driver = self._quick = self._spare_events = None
        for driver in drivers:
            if driver is not None:
                driver.close()

    def __repr__(self) -> str:
        return f"AcceleratorDevice({self.torch_device}, driver {'yes' if self.driver else 'no'})"


def _node_of_pci_device(folder: Path) -> int | None:
    """What the kernel says; it says -1 where there is one node only."""
    try:
        node = int((folder / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None
