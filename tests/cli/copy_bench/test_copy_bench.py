import asyncio
import contextlib
import importlib.util
import io
import json
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from aiokvoffload.base import Stream
from aiokvoffload.cli.copy_bench import measure
from aiokvoffload.cli.copy_bench.measure import CopyFigures
from aiokvoffload.cli.copy_bench.memory import BenchMemory, random_tensors
from aiokvoffload.cli.copy_bench.options import ENGINES, CopyOptions, Shape, SlotOrder, Ways
from aiokvoffload.cli.copy_bench.report import copy_json, copy_table, plot_copies, size_text
from aiokvoffload.cli.copy_bench.slot_orders import SlotChooser, aged_slots
from aiokvoffload.cli.probe import Percentiles
from aiokvoffload.cli.trace import TraceRequest, read_trace
from aiokvoffload.cli.traces import SAMPLE_TRACE
from aiokvoffload.config import CopyConfig
from aiokvoffload.copy.host_engine import HostEngine
from aiokvoffload.copy.plan import CopyPlan
from aiokvoffload.device import open_device
from aiokvoffload.errors import ArgumentError, ConfigError, InternalError

SMALL = {
    "fragment_bytes": (2 << 10,),
    "slot_bytes": (16 << 10,),
    "job_bytes": 128 << 10,
    "jobs": 2,
    "pool_bytes": 1 << 20,
    "device": "host",
    "repeat": 2,
}
TRACE = [TraceRequest(line, tuple(range(7 * line, 7 * line + 9))) for line in range(40)]


async def figures_of(**options: object) -> list[CopyFigures]:
    figures: list[CopyFigures] = []
    await measure.measure(CopyOptions(**(SMALL | options)), figures.append)  # type: ignore[arg-type] # options by name
    return figures


async def test_every_engine_is_measured_and_verified_in_every_order_and_direction() -> None:
    figures = await figures_of(engines=ENGINES, slots=tuple(SlotOrder))
    assert len(figures) == CopyOptions(**SMALL | {"engines": ENGINES, "slots": tuple(SlotOrder)}).combinations  # type: ignore[arg-type]
    seen = {(each.engine, each.slots, each.ways) for each in figures}
    assert seen == {(engine, slots.value, ways.value) for engine in ENGINES for slots in SlotOrder for ways in Ways}
    for each in figures:
        assert each.percent == pytest.approx(100 * each.gigabytes_per_s / each.ceiling_gigabytes_per_s)
        assert each.submit_us > 0
    assert {each.uses for each in figures if each.engine in {"staged", "direct", "torch"}} == {
        "staged",
        "direct",
        "torch",
    }


async def test_a_stream_whose_thread_is_late_makes_no_copy_faster() -> None:
    """On the host the beginning was when the thread got to its mark: by then the jobs had ended."""
    late_s = 0.1
    device = open_device("host")
    options = CopyOptions(**SMALL)  # type: ignore[arg-type] # options by name
    memory = BenchMemory(device, options, options.shapes[0], await random_tensors(device, options, options.shapes[0]))
    runner = measure.Runner(memory, options.job_bytes, options.jobs)
    device.enqueue(runner._stream, lambda: time.sleep(late_s))
    sample = await runner.once(Ways.D2H)
    await memory.aclose()
    device.close()
    assert sample.gigabytes_per_s * 1e9 <= options.jobs * options.job_bytes / (0.9 * late_s)


@pytest.mark.parametrize("turn_bytes", [0, 64 << 10])
async def test_copies_are_made_as_was_asked(turn_bytes: int) -> None:
    """Whatever the engine: turns and rings are its worker's."""
    copy = CopyConfig(turn_bytes=turn_bytes, staging_bytes=8 << 20)
    options = CopyOptions(**SMALL | {"engines": ("staged",), "copy": copy})  # type: ignore[arg-type]
    device = open_device("host")
    memory = BenchMemory(device, options, options.shapes[0], await random_tensors(device, options, options.shapes[0]))
    lanes = [handler._lane for handler in memory.worker._machinery.handlers]
    assert [lane.turns.turn_bytes if lane.turns else 0 for lane in lanes] == [turn_bytes] * len(lanes)
    assert 0 < memory.worker.statistics().staging_bytes <= 8 << 20
    await memory.aclose()
    device.close()


async def test_a_cancelled_ceiling_copies_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread cannot be cancelled, and the process would wait for all that it still does."""
    begun, may_go_on, ended = asyncio.Event(), threading.Event(), threading.Event()
    loop, measure_once, calls = asyncio.get_running_loop(), measure.Ceiling._measure, []

    def blocked(self: measure.Ceiling, ways: Ways) -> float:
        calls.append(ways)
        loop.call_soon_threadsafe(begun.set)
        may_go_on.wait()
        rate = measure_once(self, ways)
        ended.set()
        return rate

    monkeypatch.setattr(measure.Ceiling, "_measure", blocked)
    with contextlib.closing(open_device("host")) as device:
        ceiling = measure.Ceiling(device, CopyOptions(**SMALL))  # type: ignore[arg-type] # options by name
        ceiling._gpus[0].fill_(7)
        measuring = asyncio.create_task(ceiling.gigabytes_per_s(Ways.D2H))
        await begun.wait()
        measuring.cancel()
        await asyncio.wait([measuring])
        may_go_on.set()
        await asyncio.to_thread(ended.wait)
        assert (measuring.cancelled(), calls, int(ceiling._hosts[0].max())) == (True, [Ways.D2H], 1)


async def test_what_a_model_loses_is_measured_beside_the_copies() -> None:
    """With products that a processor can make: those of a GPU took it hours."""
    (figures,) = await figures_of(ways=(Ways.BOTH,), compute=True)
    assert figures.gemm_slowdown is not None
    assert figures.gemv_slowdown is not None
    assert min(figures.gemm_slowdown, figures.gemv_slowdown) > 0


async def test_an_engine_that_copies_wrong_bytes_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def copy_less(self: HostEngine, plan: CopyPlan, stream: Stream, *, ordered: bool) -> None:
        plan.sizes[0] -= 1

    monkeypatch.setattr("aiokvoffload.copy.host_engine.HostEngine.copy", copy_less)
    with pytest.raises(InternalError, match="wrong bytes"):
        await figures_of(ways=(Ways.D2H,))


@pytest.mark.gpu
async def test_the_copy_benchmark_runs_on_cuda() -> None:
    clear: Callable[[], None] = torch._C._cuda_clearCublasWorkspaces
    figures = await figures_of(device="cuda", engines=ENGINES, compute=True, job_bytes=1 << 20, pool_bytes=8 << 20)
    clear()
    assert {each.engine: each.uses for each in figures} == dict(zip(ENGINES, ENGINES, strict=True)) | {
        "batched": "cuda-batch",
        "one-call": "cuda-batch",
    }


@pytest.mark.parametrize("order", list(SlotOrder))
def test_a_job_s_slots_are_distinct_and_of_its_half(order: SlotOrder) -> None:
    chooser = SlotChooser(order, 64, 16, TRACE)
    for half in (0, 1, 1, 0):
        slots = chooser.choose(half)
        assert len(set(slots.tolist())) == 16
        assert ((slots >= 32 * half) & (slots < 32 * (half + 1))).all()
        assert order is not SlotOrder.ADJACENT or (np.diff(slots) == 1).all()


def test_an_aged_pool_hands_out_shorter_runs_than_a_fresh_one() -> None:
    aged = aged_slots(512, 256, read_trace(SAMPLE_TRACE))
    runs = [1 + int(np.count_nonzero(np.diff(next(aged)) != 1)) for _ in range(4)]
    assert all(20 < count < 250 for count in runs)


def test_a_chunk_s_fragments_lie_in_as_many_tensors_as_a_model_has_layers() -> None:
    assert (Shape(2 << 10, 2 << 20).num_tensors, Shape(2 << 10, 2 << 20).blocks_per_chunk) == (32, 32)
    assert (Shape(2 << 20, 2 << 20).num_tensors, Shape(2 << 20, 2 << 20).blocks_per_chunk) == (1, 1)
    assert Shape(2 << 10, 66 << 10).num_tensors == 11


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"repeat": 0}, "at least 1"),
        ({"engines": ("warp",)}, "engines must be among"),
        ({"fragment_bytes": (3,), "slot_bytes": (16,)}, "must divide"),
        ({"job_bytes": 1024}, "job_bytes must hold a slot"),
        ({"pool_bytes": 200 << 10}, "pool_bytes must be twice job_bytes"),
    ],
)
def test_what_cannot_be_measured_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        CopyOptions(**(SMALL | options))  # type: ignore[arg-type] # options by name


async def test_a_trace_that_cannot_be_read_is_told_before_any_memory_is_taken(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="cannot be read"):
        await figures_of(slots=(SlotOrder.SCATTERED, SlotOrder.AGED), trace=tmp_path / "none", pool_bytes=10**16)


async def test_memory_that_does_not_fit_is_one_line() -> None:
    with pytest.raises(ConfigError, match="do not fit"):
        await figures_of(job_bytes=10**15, pool_bytes=10**16)


def make_figures(engine: str = "auto", ways: str = "d2h", fragment_bytes: int = 2048) -> CopyFigures:
    return CopyFigures(
        engine=engine,
        uses="cuda-batch",
        fragment_bytes=fragment_bytes,
        slot_bytes=2 << 20,
        slots="aged",
        ways=ways,
        job_bytes=1,
        jobs=1,
        gigabytes_per_s=50.0,
        ceiling_gigabytes_per_s=55.0,
        percent=90.9,
        submit_us=100.0,
        loop_blocked_us=Percentiles(1.0, 2.0, 3.0),
        gemm_slowdown=1.04,
    )


def test_the_table_and_the_json_show_every_figure() -> None:
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(copy_table([make_figures()]))
    text = console.export_text()
    for part in ("auto (cuda-batch)", "2KiB", "2MiB", "aged", "50.0", "55.0", "90.9", "2, 3", "1.04"):
        assert part in text
    assert json.loads(copy_json([make_figures()]))[0]["gigabytes_per_s"] == 50.0
    assert [size_text(size) for size in (3, 1024, 3 << 20)] == ["3B", "1KiB", "3MiB"]


def test_a_plot_needs_matplotlib_and_is_a_png(tmp_path: Path) -> None:
    figures = [make_figures(ways=ways, fragment_bytes=size) for ways in ("d2h", "both") for size in (2048, 4096)]
    path = tmp_path / "copies.png"
    if importlib.util.find_spec("matplotlib") is None:
        with pytest.raises(ArgumentError, match="matplotlib"):
            plot_copies(figures, path)
        return
    # In a process of its own: matplotlib keeps the fonts open that it has found.
    code = f"import pickle, sys, {plot_copies.__module__} as report; report.plot_copies(*pickle.load(sys.stdin.buffer))"
    subprocess.run([sys.executable, "-c", code], input=pickle.dumps((figures, path)), check=True)  # noqa: S603
    assert path.read_bytes().startswith(b"\x89PNG")
