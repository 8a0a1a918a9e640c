"""How fast random chunks are copied, against contiguous copies of the same bytes in the same run.

Knows the worker and a clock; knows nothing of terminals beyond the table it fills.
"""

import contextlib
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median

import numpy as np
import torch
from rich.table import Table

from aiokvoffload.base import (
    CanonicalKVCacheRef,
    CanonicalKVCaches,
    CanonicalKVCacheTensor,
    Event,
    GPULoadStoreSpec,
    Ids,
    Stream,
)
from aiokvoffload.cli.blocks import allocating
from aiokvoffload.config import Mode
from aiokvoffload.cpu.common import CPULoadStoreSpec, PoolShape
from aiokvoffload.cpu.gpu_worker import CPUOffloadingWorker
from aiokvoffload.device import Device, open_device
from aiokvoffload.errors import ArgumentError, InternalError, TransferError

SPREAD = 2
"""Blocks and slots to choose from, per chunk copied: so that neighbours are rare."""
WARM_UPS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectionFigures:
    """Medians of one direction.

    Attributes:
        copy_s: on the device, from the first copy's start to the last one's end, in seconds.
        wall_s: from the call to the result in hand, in seconds.
        contiguous_s: one contiguous copy of as many bytes from or to pinned memory, on the device, in seconds.
        gigabytes_per_s: bytes over `copy_s`.
        contiguous_gigabytes_per_s: bytes over `contiguous_s`.
        ratio: the first over the second.
    """

    copy_s: float
    wall_s: float
    contiguous_s: float
    gigabytes_per_s: float
    contiguous_gigabytes_per_s: float
    ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyBenchmark:
    """One run of `copy_benchmark`: what was asked for, and what came out."""

    device: str
    engine: str
    pinned: bool
    chunks: int
    chunk_bytes: int
    layers: int
    repeat: int
    store: DirectionFigures
    load: DirectionFigures

    def to_json(self) -> str:
        """The record as one JSON object."""
        return json.dumps(asdict(self), indent=2)


class _Bench:
    """Memory of a small engine and of the baseline, and a worker over it."""

    def __init__(self, device: Device, *, chunks: int, chunk_bytes: int, layers: int) -> None:
        self.device, self.chunks, self.total_bytes = device, chunks, chunks * chunk_bytes
        page_bytes, num_blocks = chunk_bytes // layers, SPREAD * chunks
        with allocating(f"{(SPREAD + 2) * chunks:,} chunks of {chunk_bytes:,} bytes"):
            self.tensors = [
                torch.randint(0, 256, (num_blocks, page_bytes), dtype=torch.uint8, device=device.torch_device)
                for _ in range(layers)
            ]
            self.gpu = torch.empty(self.total_bytes, dtype=torch.uint8, device=device.torch_device)
            self.host = torch.zeros(self.total_bytes, dtype=torch.uint8, pin_memory=self.gpu.device.type != "cpu")
        self.worker = CPUOffloadingWorker(
            CanonicalKVCaches(
                [CanonicalKVCacheTensor(tensor, page_bytes) for tensor in self.tensors],
                [[CanonicalKVCacheRef(layer, page_bytes) for layer in range(layers)]],
            ),
            [PoolShape((0,), chunk_bytes, num_blocks)],
            blocks_per_chunk=[1],
            device=device,
            mode=Mode.STEPPED,
        )
        self.stream: Stream = device.create_stream()
        self._random = np.random.default_rng(0)
        self._job_ids = iter(range(1 << 62))

    def choose(self) -> Ids:
        """Random blocks, or slots, one for each chunk."""
        return self._random.permutation(SPREAD * self.chunks)[: self.chunks]

    def store(self, blocks: Ids, slots: Ids) -> tuple[float, float]:
        """Seconds on the device, and to the result."""
        return self._run(
            lambda job_id: self.worker.submit_store(
                job_id, GPULoadStoreSpec(blocks), CPULoadStoreSpec(slots), protect_source=False
            )
        )

    def load(self, slots: Ids, blocks: Ids) -> tuple[float, float]:
        """Seconds on the device, and to the result."""
        return self._run(
            lambda job_id: self.worker.submit_load(job_id, CPULoadStoreSpec(slots), GPULoadStoreSpec(blocks))
        )

    def _run(self, submit: Callable[[int], object]) -> tuple[float, float]:
        begin_s = time.perf_counter()
        submit(next(self._job_ids))
        while not (finished := self.worker.get_finished()):
            time.sleep(0)  # lets the submitting thread have the interpreter
        wall_s = time.perf_counter() - begin_s
        if not finished[0].success:
            raise TransferError(f"a benchmarked copy failed: {finished[0].error}")
        return finished[0].transfer_time, wall_s

    def contiguous(self, target: torch.Tensor, source: torch.Tensor) -> float:
        """Seconds of one plain copy on the device."""
        start: Event = self.device.record(self.stream)
        self.device.enqueue(self.stream, lambda: _copy(target, source))
        end = self.device.record(self.stream)
        end.synchronize()
        return self.device.elapsed_s(start, end)

    def check(self, sources: Ids, targets: Ids) -> None:
        """Figures of wrong copies are of no use.

        Raises:
            InternalError: the loaded bytes are not the stored ones.
        """
        rows = [torch.from_numpy(ids).to(self.gpu.device) for ids in (sources, targets)]
        if not all(torch.equal(tensor[rows[0]], tensor[rows[1]]) for tensor in self.tensors):
            raise InternalError("the benchmark loaded other bytes than it had stored")


def copy_benchmark(
    *,
    chunks: int = 64,
    chunk_bytes: int = 2 << 20,
    layers: int = 4,
    device: str = "auto",
    repeat: int = 30,
) -> CopyBenchmark:
    """Store random blocks into random slots and load them back, many times.

    Args:
        chunks: copied in one job.
        chunk_bytes: bytes of each.
        layers: tensors that a chunk's bytes lie in, in equal parts.
        device: `auto`, `cuda` or `host`.
        repeat: measurements of each kind, of which the medians are taken.

    Raises:
        ArgumentError: a number is below 1, or `layers` does not divide `chunk_bytes`.
        ConfigError: there is no such device, or not so much memory.
    """
    if min(chunks, chunk_bytes, layers, repeat) < 1:
        raise ArgumentError(f"all numbers must be at least 1, got {(chunks, chunk_bytes, layers, repeat)}")
    if chunk_bytes % layers:
        raise ArgumentError(f"layers must divide chunk_bytes, got {layers} and {chunk_bytes}")
    with contextlib.ExitStack() as closing:
        target = open_device(device)
        closing.callback(target.close)
        bench = _Bench(target, chunks=chunks, chunk_bytes=chunk_bytes, layers=layers)
        closing.callback(bench.worker.close)
        stores, loads = _measure(bench, repeat)
        statistics = bench.worker.statistics()
        return CopyBenchmark(
            device=target.name,
            engine=statistics.engine,
            pinned=statistics.pinned,
            chunks=chunks,
            chunk_bytes=chunk_bytes,
            layers=layers,
            repeat=repeat,
            store=_figures(bench.total_bytes, stores),
            load=_figures(bench.total_bytes, loads),
        )


_Sample = tuple[float, float, float]
"""Seconds of a copy on the device, of the same to its result, and of a contiguous copy."""


def _measure(bench: _Bench, repeat: int) -> tuple[list[_Sample], list[_Sample]]:
    stores: list[_Sample] = []
    loads: list[_Sample] = []
    for _ in range(WARM_UPS + repeat):
        sources, slots, targets = bench.choose(), bench.choose(), bench.choose()
        stores.append((*bench.store(sources, slots), bench.contiguous(bench.host, bench.gpu)))
        loads.append((*bench.load(slots, sources), bench.contiguous(bench.gpu, bench.host)))
    apart = np.setdiff1d(targets, sources)
    kept = len(apart)
    bench.load(slots[:kept], apart)
    bench.check(sources[:kept], apart)
    return stores[WARM_UPS:], loads[WARM_UPS:]


def _figures(total_bytes: int, samples: list[_Sample]) -> DirectionFigures:
    copy_s, wall_s, contiguous_s = (median(each) for each in zip(*samples, strict=True))
    return DirectionFigures(
        copy_s=copy_s,
        wall_s=wall_s,
        contiguous_s=contiguous_s,
        gigabytes_per_s=total_bytes / copy_s / 1e9,
        contiguous_gigabytes_per_s=total_bytes / contiguous_s / 1e9,
        ratio=contiguous_s / copy_s,
    )


def _copy(target: torch.Tensor, source: torch.Tensor) -> None:
    target.copy_(source, non_blocking=True)


def copy_table(benchmark: CopyBenchmark) -> Table:
    """The figures for people."""
    memory = "pinned" if benchmark.pinned else "unpinned"
    # The host's engine is called as the device is.
    setup = ", ".join(dict.fromkeys([benchmark.device, benchmark.engine, memory]))
    size = f"{benchmark.chunks:,} random chunks of {benchmark.chunk_bytes:,} bytes in {benchmark.layers:,} layers"
    title = f"{size}: {setup}"
    table = Table(title=title)
    for column in ("direction", "GB/s", "contiguous GB/s", "ratio", "copy ms", "call to result ms"):
        table.add_column(column, justify="left" if column == "direction" else "right")
    for name, figures in (("store", benchmark.store), ("load", benchmark.load)):
        table.add_row(
            name,
            f"{figures.gigabytes_per_s:.1f}",
            f"{figures.contiguous_gigabytes_per_s:.1f}",
            f"{figures.ratio:.0%}",
            f"{figures.copy_s * 1e3:.2f}",
            f"{figures.wall_s * 1e3:.2f}",
        )
    return table
