"""Numbers that the host and the GPU's kernels read and write in one place, which is pinned memory.

A model's few numbers would queue for DMA behind what is stored and loaded; a kernel gets at them at once.
"""

from typing import NamedTuple

import torch


class MappedNumbers(NamedTuple):
    """One array, seen twice. The views must not be used at the same time: whoever wrote last must have ended.

    Attributes:
        host: int32, for the host.
        gpu: the same, for kernels. A copy between it and int64 converts, and is a kernel therefore.
    """

    host: torch.Tensor
    gpu: torch.Tensor


def map_numbers(shape: tuple[int, ...]) -> MappedNumbers:
    """Zeros, of that shape, on the current CUDA device."""
    host = torch.zeros(shape, dtype=torch.int32).pin_memory()
    return MappedNumbers(host, torch.as_tensor(_OnGpu(host), device="cuda"))


class _OnGpu:
    """Pinned memory as an array of the GPU (https://numba.readthedocs.io, "CUDA Array Interface"); keeps it alive."""

    def __init__(self, host: torch.Tensor) -> None:
        self._host = host
        self.__cuda_array_interface__ = {
            "shape": tuple(host.shape),
            "typestr": "<i4",
            "data": (host.data_ptr(), False),
            "strides": None,
            "version": 3,
        }
