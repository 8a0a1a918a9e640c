"""A timer of the kernel as a file descriptor, exact to some ten microseconds (timerfd_create(2)).

Knows the C interface; knows no event loop.
"""

import ctypes
import os
import sys
import weakref

_CLOCK_MONOTONIC = 1
_TFD_NONBLOCK, _TFD_CLOEXEC = os.O_NONBLOCK if sys.platform != "win32" else 0, getattr(os, "O_CLOEXEC", 0)
_MIN_DELAY_S = 1e-6
"""A timer set to zero is off."""

# `PyDLL` keeps the GIL, and so do these calls, which never wait. `CDLL`, and `os.timerfd_settime` of Python 3.13, give
# it away around each call, and a thread that computes in Python may keep it for 5 ms.
_libc = ctypes.PyDLL(None, use_errno=True) if sys.platform == "linux" else None


_TimerSpec = ctypes.c_long * 4
"""`struct itimerspec`: seconds and nanoseconds, first of an interval, which stays 0, and then until its time."""

if _libc is not None:
    _libc.timerfd_settime.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


class TimerDescriptor:
    """One timer; it is readable from its time until it is set or cleared again.

    The descriptor is closed by `close`, or with the object.

    Attributes:
        fileno: the descriptor.

    Raises:
        OSError: the system has no such timers, or no descriptor is left.
    """

    __slots__ = ("__weakref__", "_close", "_is_closed", "_spec", "_spec_address", "fileno")

    def __init__(self) -> None:
        if _libc is None:
            raise OSError("no timers as descriptors on this system")
        self.fileno: int = _libc.timerfd_create(_CLOCK_MONOTONIC, _TFD_NONBLOCK | _TFD_CLOEXEC)
        if self.fileno < 0:
            error = ctypes.get_errno()
            raise OSError(error, f"timerfd_create: {os.strerror(error)}")
        self._close = weakref.finalize(self, os.close, self.fileno)
        self._close.atexit = False  # the process closes it anyway, and nobody would be told
        self._is_closed = False  # `_close` knows it too, by a call that would be made in every turn of the poller
        self._spec = _TimerSpec()
        self._spec_address = ctypes.addressof(self._spec)

    def set(self, delay_s: float) -> None:
        """Become readable in `delay_s` seconds, and not before."""
        delay_s = max(_MIN_DELAY_S, delay_s)
        seconds = int(delay_s)
        self._set(seconds, int((delay_s - seconds) * 1e9))

    def clear(self) -> None:
        """Do not become readable, and be it no longer."""
        self._set(0, 0)

    def _set(self, seconds: int, nanoseconds: int) -> None:
        if _libc is None or self._is_closed:
            return
        self._spec[2], self._spec[3] = seconds, nanoseconds
        _libc.timerfd_settime(self.fileno, 0, self._spec_address, None)

    def close(self) -> None:
        """Give the descriptor back; repeating it does nothing."""
        self._is_closed = True
        self._close()

    def __repr__(self) -> str:
        return f"TimerDescriptor({'closed' if self._is_closed else self.fileno})"
