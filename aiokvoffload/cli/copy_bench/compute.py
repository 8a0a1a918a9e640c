"""What a model does beside the copies: matrix products, bound by arithmetic or by memory. Knows the time they take."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from aiokvoffload.base import Stream
from aiokvoffload.device import Device

GEMM_SIZE, GEMM_COUNT = 8192, 24
GEMV_ROWS, GEMV_COLUMNS, GEMV_COUNT = 32768, 8192, 150


@dataclass(frozen=True, slots=True)
class Product:
    """One kind of work.

    Attributes:
        name: `gemm` or `gemv`.
        run: enqueues all of it on the current stream.
    """

    name: str
    run: Callable[[], None]


def products(device: Device) -> tuple[Product, ...]:
    """A GEMM (8192 cubed, bfloat16) and a GEMV (half a GiB of matrix), each some thirty milliseconds long."""
    place = device.torch_device
    left, right = (torch.randn(GEMM_SIZE, GEMM_SIZE, dtype=torch.bfloat16, device=place) for _ in range(2))
    matrix = torch.randn(GEMV_ROWS, GEMV_COLUMNS, dtype=torch.bfloat16, device=place)
    vector = torch.randn(GEMV_COLUMNS, dtype=torch.bfloat16, device=place)
    product, image = torch.empty_like(left), torch.empty(GEMV_ROWS, dtype=torch.bfloat16, device=place)

    def gemm() -> None:
        for _ in range(GEMM_COUNT):
            torch.mm(left, right, out=product)

    def gemv() -> None:
        for _ in range(GEMV_COUNT):
            torch.mv(matrix, vector, out=image)

    return Product("gemm", gemm), Product("gemv", gemv)


class Timed:
    """Work on a stream between two marks."""

    def __init__(self, device: Device, stream: Stream, work: Callable[[], None]) -> None:
        self._device = device
        self._start = device.record(stream)
        device.enqueue(stream, work)
        self._end = device.record(stream)

    def wait(self) -> float:
        """Block until it has ended; returns seconds on the device."""
        self._end.synchronize()
        return self._device.elapsed_s(self._start, self._end)
