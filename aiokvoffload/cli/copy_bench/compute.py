"""What a model does beside the copies: matrix products, bound by arithmetic or by memory. Knows the time they take."""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

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
        run: enqueues all of it on the current stream, in one launch where the device can.
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

    return Product("gemm", _in_one_launch(device, gemm)), Product("gemv", _in_one_launch(device, gemv))


def _in_one_launch(device: Device, work: Callable[[], None]) -> Callable[[], None]:
    """The work as a CUDA graph, as servers decode, where there are such.

    Launched one by one, what counts is also how long the launching thread waits for the interpreter.
    """
    if device.torch_device.type != "cuda":
        return work
    work()  # before it is recorded, since libraries choose and allocate at the first time
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        work()
    return graph.replay


def seconds(device: Device, stream: Stream, work: Callable[[], None], *, repeat: int) -> float:
    """Block while work runs on a stream, again and again; returns seconds on the device, the median."""
    return median(_seconds_once(device, stream, work) for _ in range(repeat))


def _seconds_once(device: Device, stream: Stream, work: Callable[[], None]) -> float:
    start = device.record(stream)
    device.enqueue(stream, work)
    end = device.record(stream)
    end.synchronize()
    return device.elapsed_s(start, end)
