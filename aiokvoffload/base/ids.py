"""Ids as arrays, and what is asked of short ones without giving up the interpreter.

Some of numpy's functions (`argmax`, `sort`, `take`, `arange`, `searchsorted` among them) let other threads run however
short the array is, and most do above 500 elements (`NPY_BEGIN_THREADS_THRESHOLDED`). A thread that computes in Python
keeps the interpreter for 5 ms then, and the loop, whose call took a microsecond, waits for it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from aiokvoffload.errors import ArgumentError

Ids = npt.NDArray[np.int64]
"""A one-dimensional array of block ids, slot indices or the like."""

SHORT = 64
"""Up to here a list is looked through as fast as an array."""

_COUNT = np.arange(512)
"""To be cut from, since making such an array gives up the interpreter."""
_COUNT.flags.writeable = False

_ID_TYPE = np.dtype(np.int64)
_MAX_ID = int(np.iinfo(_ID_TYPE).max)


def as_ids(name: str, values: npt.ArrayLike) -> Ids:
    """`values` as an int64 array of ids of its own (a caller's later change to `values` changes nothing).

    Raises:
        ArgumentError: not one-dimensional, not whole numbers, negative, above 2**63 - 1, or more than memory holds; the
            message starts with `name`.
    """
    try:
        if isinstance(values, range) and len(values) > SHORT:  # `numpy.array` takes a range apart number by number
            array: npt.NDArray[Any] = np.arange(values.start, values.stop, values.step)
        else:
            # A tensor knows nothing of numpy's `copy=True`, which would be told with a warning.
            array = np.array(np.asarray(values) if hasattr(values, "__array__") else values)
    # A tensor that keeps a gradient raises the last of them.
    except (ValueError, TypeError, OverflowError, MemoryError, RuntimeError) as error:
        raise ArgumentError(f"{name} must make an array of whole numbers below 2**63: {error}") from error
    if array.size == 0:
        array = array.astype(_ID_TYPE)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ArgumentError(
            f"{name} must be a one-dimensional array of whole numbers, got shape {array.shape} of {array.dtype}"
        )
    if array.dtype.kind == "u" and len(array) and (largest := highest(array)) > _MAX_ID:
        raise ArgumentError(f"{name} must be at most {_MAX_ID}, got {largest} at index {int(array.argmax())}")
    ids = array if array.dtype is _ID_TYPE else array.astype(_ID_TYPE)
    if len(ids) and (least := lowest(ids)) < 0:
        raise ArgumentError(f"{name} must be at least 0, got {least} at index {int(ids.argmin())}")
    return ids


def lowest(numbers: npt.NDArray[np.integer]) -> int:
    """The least of them; there must be one."""
    return min(numbers.tolist()) if len(numbers) <= SHORT else int(np.minimum.reduce(numbers))


def highest(numbers: npt.NDArray[np.integer]) -> int:
    """The largest of them; there must be one."""
    return max(numbers.tolist()) if len(numbers) <= SHORT else int(np.maximum.reduce(numbers))


def zero_table(*shape: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Zeros to be looked up by id, with their memory there: made on a thread, so that no loop waits for pages later.

    `numpy.zeros` only promises memory. The first touch of a huge page takes a millisecond, in a virtual machine more.
    """
    return np.full(shape, 0, dtype)


def count_up(start: int, stop: int) -> Ids:
    """The numbers from `start` to `stop`, which is not among them; not to be written to."""
    return _COUNT[start:stop] if stop <= len(_COUNT) else np.arange(start, stop)
