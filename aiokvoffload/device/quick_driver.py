"""Driver calls of a microsecond or two, made without giving up the GIL.

A thread that gives it up beside a busy loop waits up to 5 ms to get it back, in every call; ten calls for each piece of
a copy would take the bus away from it. What may take longer belongs to `CudaDriver`. Source: CUDA Driver API reference,
"Context Management", "Event Management" and "Execution Control"; ctypes, `PyDLL`.
"""

import ctypes
from typing import NamedTuple

from aiokvoffload.device.driver import CudaDriver

_DISABLE_TIMING = 2
_SUCCESS, _NOT_READY = _ANSWERS = (0, 600)
_THREADS_OF_A_WARP = 32


class Function(NamedTuple):
    """A compiled kernel: its handle, threads in warps, and bytes of shared memory."""

    handle: int
    num_warps: int
    shared_bytes: int


class LaunchParameters(ctypes.Structure):
    """Arguments of `kernels.move_tiles`, and the two scratch pointers that Triton adds, which the kernel never uses."""

    _fields_ = (
        ("blocks", ctypes.c_int64),
        ("table", ctypes.c_int64),
        ("tiles_per_block", ctypes.c_int32),
        ("first_tile", ctypes.c_int32),
        ("count", ctypes.c_int32),
        ("to_gpu", ctypes.c_int32),
        ("global_scratch", ctypes.c_void_p),
        ("profile_scratch", ctypes.c_void_p),
    )


class QuickDriver(CudaDriver):
    """Enqueues on one thread, inside its `session`; what is about events is for any thread, inside a `current`.

    What a mark is made and asked by needs none: events and streams know their context. Should the driver see that
    otherwise, the call is made again inside one.

    Args:
        ordinal: the device's index, as torch counts.

    Attributes:
        session: a context in which the device is the thread's current one.

    Raises:
        OSError: there is no driver, or it refuses. This holds for every call.
    """

    def __init__(self, ordinal: int) -> None:
        super().__init__(ordinal, library=ctypes.PyDLL)
        pointer, number = ctypes.c_void_p, ctypes.c_uint
        self._declare("cuEventRecord", pointer, pointer)
        self._declare("cuStreamWaitEvent", pointer, pointer, number)
        self._declare("cuEventQuery", pointer)
        self._declare("cuEventDestroy_v2", pointer)
        self._declare("cuEventElapsedTime", pointer, pointer, pointer)
        self._declare("cuLaunchKernel", pointer, *(number,) * 7, pointer, pointer, pointer)
        # Looked up once: these are called for every piece of every copy.
        lib = self._lib
        self._record, self._wait, self._query = lib.cuEventRecord, lib.cuStreamWaitEvent, lib.cuEventQuery
        self._elapsed = lib.cuEventElapsedTime
        self._copy, self._launch = lib.cuMemcpyAsync, lib.cuLaunchKernel
        self._synchronize = ctypes.CDLL("libcuda.so.1").cuEventSynchronize  # it waits, so it gives up the GIL
        self._synchronize.argtypes = (pointer,)
        self._parameters = LaunchParameters()
        start = ctypes.addressof(self._parameters)
        offsets = [getattr(LaunchParameters, name).offset for name, _ in LaunchParameters._fields_]
        self._parameter_ptrs = (pointer * len(offsets))(*(start + offset for offset in offsets))
        self._parameters_ptr = ctypes.addressof(self._parameter_ptrs)
        self.session = self.current()

    def create_event(self, *, timed: bool = False) -> int:
        """An event; those with a time cost more to record."""
        event = ctypes.c_void_p()
        self._call("cuEventCreate", ctypes.byref(event), 0 if timed else _DISABLE_TIMING)
        return int(event.value or 0)

    def destroy_event(self, event: int) -> None:
        """Give an event back."""
        self._call("cuEventDestroy_v2", event)

    def record_event(self, event: int, stream: int) -> None:
        """Mark the end of `stream`; waits made before keep to the old mark."""
        if code := self._record(event, stream):
            self._check("cuEventRecord", code)

    def wait_event(self, stream: int, event: int) -> None:
        """Make later work of `stream` wait for the mark as it is now."""
        if code := self._wait(stream, event, 0):
            self._check("cuStreamWaitEvent", code)

    def event_passed(self, event: int) -> bool:
        """Whether the mark has been reached."""
        code: int = self._query(event)
        if code not in _ANSWERS:
            with self.current():
                code = self._query(event)
            if code not in _ANSWERS:
                self._check("cuEventQuery", code)
        return code != _NOT_READY

    def mark(self, event: int, stream: int) -> None:
        """`record_event`, on any thread. `stream` is none of the default ones, which are each context's own."""
        if self._record(event, stream):
            with self.current():
                self.record_event(event, stream)

    def synchronize_event(self, event: int) -> None:
        """Block, without the GIL, until the mark has been reached."""
        self._check("cuEventSynchronize", self._synchronize(event))

    def elapsed_s(self, start: int, end: int) -> float:
        """Seconds between two marks with times that have been reached."""
        milliseconds = ctypes.c_float()
        if self._elapsed(ctypes.byref(milliseconds), start, end):
            with self.current():
                self._call("cuEventElapsedTime", ctypes.byref(milliseconds), start, end)
        return milliseconds.value / 1e3

    def copy_here(self, dst_ptr: int, src_ptr: int, size_bytes: int, *, stream: int) -> None:
        """Enqueue one copy."""
        if code := self._copy(dst_ptr, src_ptr, size_bytes, stream):
            self._check("cuMemcpyAsync", code)

    def copy_few(
        self, dst_array: int, src_array: int, size_array: int, *, count: int, stream: int, ordered: bool
    ) -> None:
        """Enqueue a few copies; see `copy_batch`."""
        self._enqueue_batch(dst_array, src_array, size_array, count=count, stream=stream, ordered=ordered)

    def launch(
        self, function: Function, programs: int, stream: int, *, blocks: int, table: int, numbers: tuple[int, ...]
    ) -> None:
        """Launch the tile kernel.

        Args:
            function: compiled.
            programs: of the grid.
            stream: where to.
            blocks: address of the blocks' descriptors.
            table: address of the table of tiles.
            numbers: tiles per block, first tile, count and direction.
        """
        parameters = self._parameters
        parameters.blocks, parameters.table = blocks, table
        parameters.tiles_per_block, parameters.first_tile, parameters.count, parameters.to_gpu = numbers
        shape = (programs, 1, 1, function.num_warps * _THREADS_OF_A_WARP, 1, 1, function.shared_bytes)
        if code := self._launch(function.handle, *shape, stream, self._parameters_ptr, None):
            self._check("cuLaunchKernel", code)
