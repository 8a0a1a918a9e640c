"""The few calls of the CUDA driver that torch does not offer, through ctypes.

Knows the C interface of libcuda (CUDA Driver API reference, "Memory Management" and "Primary Context Management").
The driver's calls are used, and not the runtime's, because their failures leave no pending error for torch to trip
over, and because numpy arrays can be handed to them as they are: building Python lists takes as long as the call.
"""

import ctypes
from types import TracebackType
from typing import Any

_ACCESS_IN_STREAM_ORDER = 1
_ACCESS_ANY_TIME = 3
_REGISTER_PORTABLE = 1
_SUCCESS = 0


class _MemLocation(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _MemcpyAttributes(ctypes.Structure):
    """`CUmemcpyAttributes`: 24 bytes; the location hints are ignored for memory that has a place."""

    _fields_ = (
        ("src_access_order", ctypes.c_int),
        ("src_loc_hint", _MemLocation),
        ("dst_loc_hint", _MemLocation),
        ("flags", ctypes.c_uint),
    )


class CudaDriver:
    """libcuda, for one device. Its calls release the GIL, but for what makes the device current; from any thread.

    Args:
        ordinal: the device's index, as torch counts.
        library: how ctypes calls it.

    Attributes:
        has_batch_copy: whether the driver has `cuMemcpyBatchAsync` (12.8 and later).

    Raises:
        OSError: there is no driver, or it refuses.
    """

    def __init__(self, ordinal: int, *, library: type[ctypes.CDLL] = ctypes.CDLL) -> None:
        self._lib = library("libcuda.so.1")
        self._declare("cuMemHostRegister_v2", ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint)
        self._declare("cuMemHostUnregister", ctypes.c_void_p)
        self._declare("cuMemcpyAsync", ctypes.c_uint64, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p)
        # Of these the GIL is kept: to get it back beside a busy thread takes 5 ms, and they take one microsecond.
        context = ctypes.PyDLL("libcuda.so.1")
        self._push, self._pop = context.cuCtxPushCurrent_v2, context.cuCtxPopCurrent_v2
        self._get_current = context.cuCtxGetCurrent
        self._push.argtypes = self._pop.argtypes = self._get_current.argtypes = (ctypes.c_void_p,)
        self._batch, self._batch_has_fail_index = self._find_batch()
        device, self._context = ctypes.c_int(), ctypes.c_void_p()
        self._call("cuInit", 0)
        self._call("cuDeviceGet", ctypes.byref(device), ordinal)
        # The primary context is the one torch works in; retaining it keeps it valid for threads that never touched it.
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), device)
        self._device = device

    @property
    def has_batch_copy(self) -> bool:
        """Whether many copies can be enqueued in one call."""
        return self._batch is not None

    def _declare(self, name: str, *argument_types: Any) -> None:
        getattr(self._lib, name).argtypes = argument_types

    def _find_batch(self) -> tuple[Any, bool]:
        pointers = (ctypes.c_void_p,) * 3
        attributes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
        for name, fail_index in (("cuMemcpyBatchAsync_v2", ()), ("cuMemcpyBatchAsync", (ctypes.c_void_p,))):
            function = getattr(self._lib, name, None)
            if function is not None:
                function.argtypes = (*pointers, ctypes.c_size_t, *attributes, *fail_index, ctypes.c_void_p)
                return function, bool(fail_index)
        return None, False

    def copy_batch(
        self, dst_array: int, src_array: int, size_array: int, *, count: int, stream: int, ordered: bool
    ) -> None:
        """Enqueue `count` copies given by three arrays of 8-byte numbers.

        Args:
            dst_array: address of the array of destination addresses.
            src_array: address of the array of source addresses.
            size_array: address of the array of sizes in bytes.
            count: entries of each, at least 1.
            stream: handle; not 0, which the driver refuses.
            ordered: whether sources are read in stream order, or at any time from now on.

        Raises:
            OSError: the driver refused; which copies it took is not known.
        """
        with self.current():
            self._enqueue_batch(dst_array, src_array, size_array, count=count, stream=stream, ordered=ordered)

    def _enqueue_batch(
        self, dst_array: int, src_array: int, size_array: int, *, count: int, stream: int, ordered: bool
    ) -> None:
        order = _ACCESS_IN_STREAM_ORDER if ordered else _ACCESS_ANY_TIME
        attributes, first = _MemcpyAttributes(src_access_order=order), ctypes.c_size_t(0)
        shared = (dst_array, src_array, size_array, count, ctypes.addressof(attributes), ctypes.addressof(first), 1)
        if self._batch_has_fail_index:
            failed = ctypes.c_size_t(0)
            code = self._batch(*shared, ctypes.addressof(failed), stream)
        else:
            code = self._batch(*shared, stream)
        self._check("cuMemcpyBatchAsync", code)

    def copy(self, dst_ptr: int, src_ptr: int, size_bytes: int, *, stream: int) -> None:
        """Enqueue one copy.

        Raises:
            OSError: the driver refused.
        """
        with self.current():
            self._call("cuMemcpyAsync", dst_ptr, src_ptr, size_bytes, stream)

    def register(self, address: int, size_bytes: int) -> None:
        """Pin host memory for every context.

        Raises:
            OSError: the driver refused; nothing is pinned.
        """
        with self.current():
            self._call("cuMemHostRegister_v2", address, size_bytes, _REGISTER_PORTABLE)

    def unregister(self, address: int) -> None:
        """Undo `register` of a range that begins at `address`.

        Raises:
            OSError: the driver refused.
        """
        with self.current():
            self._call("cuMemHostUnregister", address)

    def close(self) -> None:
        """Let go of the context.

        Raises:
            OSError: the driver refused.
        """
        self._call("cuDevicePrimaryCtxRelease_v2", self._device)

    def current(self) -> "CurrentContext":
        """Makes the device the thread's own current one for a while."""
        return CurrentContext(self)

    def enter(self) -> bool:
        """Make the context current, unless it is; returns whether it has to be popped."""
        current = ctypes.c_void_p()
        self._get_current(ctypes.addressof(current))
        if current.value == self._context.value:
            return False
        self._check("cuCtxPushCurrent", self._push(self._context))
        # A thread that had none keeps it: there is nothing to go back to.
        return current.value is not None

    def leave(self) -> None:
        """Undo an `enter` that said so."""
        self._check("cuCtxPopCurrent", self._pop(ctypes.byref(ctypes.c_void_p())))

    def _call(self, name: str, *arguments: Any) -> None:
        self._check(name, getattr(self._lib, name)(*arguments))

    def _check(self, name: str, code: int) -> None:
        if code != _SUCCESS:
            text = ctypes.c_char_p()
            self._lib.cuGetErrorName(code, ctypes.byref(text))
            raise OSError(f"{name}: {(text.value or b'unknown error').decode()} ({code})")


class CurrentContext:
    """`with` for a thread at a time: what was current before is so again. A generator takes longer than the calls."""

    __slots__ = ("_driver", "_pops")

    def __init__(self, driver: CudaDriver) -> None:
        self._driver = driver
        self._pops = False

    def __enter__(self) -> None:
        self._pops = self._driver.enter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pops:
            self._driver.leave()


def stream_handle(stream: Any) -> int:
    """The driver's handle of a torch stream. The batched call refuses handle 0, the legacy default stream."""
    handle: int = stream.cuda_stream
    return handle
