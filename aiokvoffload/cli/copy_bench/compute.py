"""What a model does beside the copies: matrix products, bound by arithmetic or by memory. Knows the time they take."""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import torch

from aiokvoffload.base import Stream
from aiokvoffload.device import Device


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of the products.

    Attributes:
        gemm: rows and columns of either matrix.
        gemms: of them, one after the other.
        gemv_rows: of the matrix that a vector is multiplied with.
        gemv_columns: the same.
        gemvs: of them.
    """

    gemm: int
    gemms: int
    gemv_rows: int
    gemv_columns: int
    gemvs: int


GPU_SIZES = Sizes(gemm=8192, gemms=24, gemv_rows=32_768, gemv_columns=8192, gemvs=150)
"""Some thirty milliseconds of each on an H200."""
HOST_SIZES = Sizes(gemm=512, gemms=8, gemv_rows=2048, gemv_columns=2048, gemvs=8)
"""Milliseconds to a few tenths of a second: those of a GPU would take a processor minutes, each time."""


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
    """A GEMM and a GEMV of bfloat16: bound by arithmetic, and by memory where the matrix is larger than a cache."""
    place = device.torch_device
    sizes = HOST_SIZES if place.type == "cpu" else GPU_SIZES
    left, right = (torch.randn(sizes.gemm, sizes.gemm, dtype=torch.bfloat16, device=place) for _ in range(2))
    matrix = torch.randn(sizes.gemv_rows, sizes.gemv_columns, dtype=torch.bfloat16, device=place)
    vector = torch.randn(sizes.gemv_columns, dtype=torch.bfloat16, device=place)
    product, image = torch.empty_like(left), torch.empty(sizes.gemv_rows, dtype=torch.bfloat16, device=place)

    def gemm() -> None:
        for _ in range(sizes.gemms):
            torch.mm(left, right, out=product)

    def gemv() -> None:
        for _ in range(sizes.gemvs):
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
