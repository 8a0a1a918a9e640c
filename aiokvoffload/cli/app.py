"""Commands and their options. Knows the terminal; the work is done by the modules it calls."""

import asyncio
import contextlib
import enum
import gc
import importlib.util
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Annotated, Any, TypeVar

import torch
import typer
from rich.console import Console, Group
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import aiokvoffload
from aiokvoffload import registry
from aiokvoffload.cli.arena_bench import arena_benchmark, arena_table
from aiokvoffload.cli.copy_bench.measure import CopyFigures
from aiokvoffload.cli.copy_bench.measure import measure as measure_copies
from aiokvoffload.cli.copy_bench.options import ENGINES, CopyOptions, SlotOrder, Ways
from aiokvoffload.cli.copy_bench.report import copy_json, copy_table, plot_copies
from aiokvoffload.cli.disk_bench import disk_benchmark, disk_table
from aiokvoffload.cli.inspect import inspection_json, inspection_table
from aiokvoffload.cli.interrupt import INTERRUPTED_LINE, INTERRUPTED_STATUS, leave_at_once, take_over
from aiokvoffload.cli.loop_bench import loop_benchmark, loop_table
from aiokvoffload.cli.manager_bench import manager_benchmark, manager_json, manager_table
from aiokvoffload.cli.plotting import import_matplotlib
from aiokvoffload.cli.policy_bench import policy_benchmark, policy_json, policy_table
from aiokvoffload.cli.policy_plot import plot_policies
from aiokvoffload.cli.poller_bench import TRANSFER_BYTES, poller_benchmark
from aiokvoffload.cli.poller_figures import poller_tables
from aiokvoffload.cli.recovery_bench import recovery_benchmark, recovery_table
from aiokvoffload.cli.replay import ReplayOptions, replay
from aiokvoffload.cli.sizes import parse_size
from aiokvoffload.cli.trace import SAMPLE_TRACE, read_trace
from aiokvoffload.cli.workloads import WORKLOADS
from aiokvoffload.config import HostMemory
from aiokvoffload.errors import ArgumentError, OffloadError
from aiokvoffload.tiering.disk.inspection import inspect_directory, verify_directories

T = TypeVar("T")

STDOUT = Path("-")
USAGE_STATUS = 2

app = typer.Typer(name="aiokvoffload", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@contextlib.contextmanager
def clear_errors() -> Iterator[None]:
    """One line on standard error and status 2 instead of a traceback, for what is not this program's fault."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(INTERRUPTED_LINE, err=True)
        raise typer.Exit(INTERRUPTED_STATUS) from None
    except (OffloadError, OSError, ExceptionGroup) as error:
        message = _only_offload_errors(error)
        if message is None:
            raise
        typer.echo(f"aiokvoffload: {message}", err=True)
        raise typer.Exit(USAGE_STATUS) from None


def _only_offload_errors(error: Exception) -> str | None:
    """What to say, or `None` if an exception group holds something that deserves its traceback."""
    if not isinstance(error, ExceptionGroup):
        return str(error)
    known, others = error.split((OffloadError, OSError))
    if known is None or others is not None:
        return None
    first: BaseException = known
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return str(first)


def own_process() -> None:
    """Set what only a program may decide for its whole process, as a server would, so that its loop stays free."""
    # On the host device torch's work comes from streams, threads already: a pool of more would only starve the loop.
    torch.set_num_threads(1)
    # What is loaded by now stays: a full collection would walk all of torch on the loop, a tenth of a second each time.
    gc.freeze()


class Loop(enum.Enum):
    """Event loops to choose from."""

    UVLOOP = "uvloop"
    ASYNCIO = "asyncio"


def run(main: Coroutine[Any, Any, T], *, loop: Loop = Loop.UVLOOP) -> T:
    """Run `main` on uvloop where that is wanted and installed, else on asyncio.

    Raises:
        KeyboardInterrupt: Ctrl-C cancelled it, and it has ended.
    """
    on_uvloop = loop is Loop.UVLOOP and importlib.util.find_spec("uvloop") is not None
    loop_factory = importlib.import_module("uvloop").new_event_loop if on_uvloop else None
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        try:
            return runner.run(cancelled_by_ctrl_c(main))
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None


async def cancelled_by_ctrl_c(main: Coroutine[Any, Any, T]) -> T:
    """Await `main`; the first Ctrl-C cancels it, a second one does not wait for its end."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    before = signal.getsignal(signal.SIGINT)

    def interrupted(*_: object) -> None:
        take_over(leave_at_once)
        if task is not None:
            loop.call_soon_threadsafe(task.cancel)

    take_over(interrupted)
    try:
        return await main
    finally:
        take_over(before)


def _directory(text: str) -> Path:
    # A path makes "." of it: what a variable of a shell that is not set would fill.
    if not text or "\0" in text:
        raise typer.BadParameter(f"a directory must have a name, got {text!r}")
    return Path(text)


def _size(text: str | int) -> int:
    if isinstance(text, int):  # a default passes through here as well
        return text
    try:
        return parse_size(text)
    except OffloadError as error:
        raise typer.BadParameter(str(error)) from None


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"aiokvoffload {aiokvoffload.__version__}")
        raise typer.Exit


@app.callback()
def options(
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """KV-cache offloading for LLM servers written on asyncio: try it on a trace, measure its copies."""


Device = Annotated[str, typer.Option(help="Where the blocks lie: auto (what torch finds), cuda or host.")]
JsonFile = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", help="Write the figures as JSON too; - writes nothing else.")
]
POLICIES = ", ".join(registry.names("policies"))
BUILTIN_POLICIES = tuple(registry.BUILTIN["policies"])


@app.command(name="replay")
def replay_command(
    trace: Annotated[
        Path, typer.Argument(metavar="TRACE", help="Mooncake-format trace (JSON lines).", show_default="a sample")
    ] = SAMPLE_TRACE,
    *,
    requests: Annotated[int | None, typer.Option(min=1, help="Only the first N requests.")] = None,
    policy: Annotated[str, typer.Option(help=f"Cache policy of the CPU tier: {POLICIES}.")] = "lru",
    gpu_blocks: Annotated[
        int | None, typer.Option(min=1, help="Blocks in GPU memory.", show_default="4 times the longest prompt")
    ] = None,
    cpu_chunks: Annotated[int, typer.Option(min=1, help="Chunks that CPU memory holds.")] = 5_000,
    chunk_bytes: Annotated[
        int | None,
        typer.Option(
            parser=_size, metavar="SIZE", help="Bytes of a chunk.", show_default="16KiB on host, 1MiB on cuda"
        ),
    ] = None,
    device: Device = "auto",
    concurrency: Annotated[int, typer.Option(min=1, help="Requests in service at a time.")] = 16,
    verify: Annotated[bool, typer.Option("--verify", help="Compare every loaded byte.")] = False,
    disk_dir: Annotated[
        Path | None,
        typer.Option(parser=_directory, metavar="DIR", help="A directory for a disk tier below CPU memory."),
    ] = None,
    disk_bytes: Annotated[
        int | None, typer.Option(parser=_size, metavar="SIZE", help="What the disk tier has room for.")
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Replay a trace as an async server would, and say what it brought."""
    replay_options = ReplayOptions(
        policy=policy,
        gpu_blocks=gpu_blocks,
        cpu_chunks=cpu_chunks,
        chunk_bytes=chunk_bytes,
        device=device,
        concurrency=concurrency,
        verify=verify,
        disk_dir=disk_dir,
        disk_bytes=disk_bytes,
        trace_name="sample" if trace == SAMPLE_TRACE else trace.name,
    )
    with clear_errors():
        check_writable(json_file)
        trace_requests = read_trace(trace, limit=requests)
        with progress(len(trace_requests), quiet=json_file == STDOUT) as advance:
            report = run(replay(trace_requests, replay_options, on_served=advance))
        show(report.table(), report.to_json(), json_file)
    raise typer.Exit(0 if report.ok else 1)


@contextlib.contextmanager
def progress(total: int, *, quiet: bool, what: str = "requests") -> Iterator[Callable[[], None]]:
    """A bar on standard error, where that is a terminal; yields what moves it on by one."""
    console = Console(stderr=True)
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=quiet or not console.is_terminal) as bar:
        task = bar.add_task(what, total=total)
        yield lambda: bar.advance(task)


def check_writable(file: Path | None, *, option: str = "--json") -> None:
    """Find out before a long run, not after it, that its figures cannot be written.

    Raises:
        ArgumentError: there is no such folder, or it or the file may not be written.
    """
    if file is None or file == STDOUT:
        return
    folder = file.parent
    if not folder.is_dir():
        raise ArgumentError(f"{option} {file}: there is no folder {folder}: make it, or name a file in another")
    if file.is_dir():
        raise ArgumentError(f"{option} {file}: that is a folder: name a file in it")
    if not os.access(file if file.exists() else folder, os.W_OK):
        raise ArgumentError(f"{option} {file}: it may not be written: name a file in another folder")


def show(table: Table | Group, json_text: str, json_file: Path | None) -> None:
    """A table on standard output, or JSON there, or JSON in a file beside the table."""
    if json_file == STDOUT:
        print(json_text)
        return
    Console(file=sys.stdout).print(table)
    if json_file is not None:
        json_file.write_text(json_text + "\n", encoding="utf-8")


bench = typer.Typer(name="bench", help="Measure parts of the library on this machine.", no_args_is_help=True)
app.add_typer(bench)


_COPY = CopyOptions()


def sizes(text: str) -> tuple[int, ...]:
    """Bytes of each size in a list.

    Raises:
        ArgumentError: one is no size.
    """
    return tuple(parse_size(part) for part in text.split(","))


@bench.command(name="copy")
def bench_copy_command(
    *,
    fragment_bytes: Annotated[
        str, typer.Option(metavar="SIZES", help="One block in one tensor.")
    ] = "2KiB,16KiB,128KiB,2MiB",
    slot_bytes: Annotated[str, typer.Option(metavar="SIZES", help="One chunk.")] = "2MiB",
    slots: Annotated[str, typer.Option(help="Orders of slots: adjacent, scattered, aged.")] = "scattered",
    job_bytes: Annotated[
        int, typer.Option(parser=_size, metavar="SIZE", help="One job.", show_default="256MiB")
    ] = _COPY.job_bytes,
    jobs: Annotated[int, typer.Option(min=1, help="Jobs at once in each direction.")] = _COPY.jobs,
    pool_bytes: Annotated[
        int, typer.Option(parser=_size, metavar="SIZE", help="GPU memory, and CPU memory.", show_default="2GiB")
    ] = _COPY.pool_bytes,
    directions: Annotated[str, typer.Option(help="Which: d2h, h2d, both.")] = "d2h,h2d,both",
    engines: Annotated[str, typer.Option(help=f"Which: {', '.join(ENGINES)}.")] = "auto",
    compute: Annotated[bool, typer.Option("--compute", help="Run a GEMM and a GEMV beside the copies.")] = False,
    programs: Annotated[int, typer.Option(min=1, help="Of the gathering kernel.")] = _COPY.programs,
    trace: Annotated[Path, typer.Option(help="What ages a pool.", show_default="a sample")] = SAMPLE_TRACE,
    device: Device = "auto",
    repeat: Annotated[int, typer.Option(min=1, help="Measurements, of which medians are taken.")] = _COPY.repeat,
    json_file: JsonFile = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Plot the rates as PNG.")] = None,
) -> None:
    """Copy random chunks by every engine, against contiguous copies of as many bytes in the same run."""
    with clear_errors():
        check_writable(json_file)
        if plot is not None:
            check_writable(plot, option="--plot")
            import_matplotlib()
        copy_options = CopyOptions(
            fragment_bytes=sizes(fragment_bytes),
            slot_bytes=sizes(slot_bytes),
            slots=choices(SlotOrder, slots, option="--slots"),
            job_bytes=job_bytes,
            jobs=jobs,
            pool_bytes=pool_bytes,
            ways=choices(Ways, directions, option="--directions"),
            engines=tuple(engines.split(",")),
            trace=trace,
            device=device,
            repeat=repeat,
            compute=compute,
            programs=programs,
        )
        figures: list[CopyFigures] = []
        run(measure_copies(copy_options, figures.append))
        show(copy_table(figures), copy_json(figures), json_file)
        if plot is not None:
            plot_copies(figures, plot)


EnumT = TypeVar("EnumT", bound=enum.Enum)


def choices(kind: type[EnumT], text: str, *, option: str) -> tuple[EnumT, ...]:
    """The members of `kind` whose values are listed in `text`.

    Raises:
        ArgumentError: one is unknown.
    """
    try:
        return tuple(kind(value) for value in text.split(","))
    except ValueError as error:
        known = ", ".join(str(member.value) for member in kind)
        raise ArgumentError(f"{option} must be out of {known}, got {text!r}") from error


@bench.command(name="loop")
def bench_loop_command(
    *,
    requests: Annotated[int, typer.Option(min=1, help="Requests at once.")] = 64,
    keys: Annotated[int, typer.Option(min=1, help="Keys of each request's chain.")] = 4096,
    cpu_chunks: Annotated[
        int | None, typer.Option(min=1, help="Chunks that CPU memory holds.", show_default="all of them")
    ] = None,
    device: Device = "auto",
    json_file: JsonFile = None,
) -> None:
    """Say how long the event loop is blocked while many requests move long chains at once."""
    with clear_errors():
        check_writable(json_file)
        result = run(loop_benchmark(requests=requests, keys_per_request=keys, cpu_chunks=cpu_chunks, device=device))
        show(loop_table(result), result.to_json(), json_file)


@bench.command(name="arena")
def bench_arena_command(
    *,
    size_bytes: Annotated[
        int, typer.Option("--bytes", parser=_size, metavar="SIZE", help="CPU memory.", show_default="8GiB")
    ] = 8 << 30,
    chunk_bytes: Annotated[
        int, typer.Option(parser=_size, metavar="SIZE", help="Bytes of a chunk.", show_default="2MiB")
    ] = 2 << 20,
    piece_bytes: Annotated[
        int | None,
        typer.Option(parser=_size, metavar="SIZE", help="Memory pinned in one go.", show_default="the library's"),
    ] = None,
    memory: Annotated[HostMemory, typer.Option(help="What kind of memory.")] = HostMemory.ANONYMOUS,
    device: Device = "auto",
    json_file: JsonFile = None,
) -> None:
    """Say how soon a service is usable and all its memory pinned, against torch's pinned allocator in the same run."""
    with clear_errors():
        check_writable(json_file)
        benchmark = arena_benchmark(
            size_bytes=size_bytes, chunk_bytes=chunk_bytes, piece_bytes=piece_bytes, memory=memory, device=device
        )
        result = run(benchmark)
        show(arena_table(result), result.to_json(), json_file)


@bench.command(name="poller")
def bench_poller_command(
    *,
    transfer_bytes: Annotated[
        str, typer.Option(metavar="SIZE,...", help="Bytes of the transfers whose lag is measured.")
    ] = ",".join(f"{size >> 10}KiB" for size in TRANSFER_BYTES),
    seconds: Annotated[float, typer.Option(min=0.01, help="Of each phase.")] = 1.0,
    loop: Annotated[Loop, typer.Option(help="The event loop.")] = Loop.UVLOOP,
    fragments: Annotated[
        int, typer.Option(min=0, help="Measure lags beside jobs of so many fragments and busy threads, too.")
    ] = 0,
    device: Device = "auto",
    json_file: JsonFile = None,
) -> None:
    """Say how soon a coroutine goes on after its transfer, and what the waiting costs the loop's core."""
    with clear_errors():
        check_writable(json_file)
        sizes = [parse_size(size) for size in transfer_bytes.split(",")]
        measured = poller_benchmark(transfer_bytes=sizes, seconds=seconds, device=device, fragments=fragments)
        result = run(measured, loop=loop)
        show(Group(*poller_tables(result)), result.to_json(), json_file)


@bench.command(name="manager")
def bench_manager_command(
    trace: Annotated[Path, typer.Argument(help="Mooncake-format trace (JSON lines).", show_default="a sample")] = (
        SAMPLE_TRACE
    ),
    *,
    policy: Annotated[list[str] | None, typer.Option(help="Cache policy; may be repeated.", show_default="lru")] = None,
    cpu_chunks: Annotated[
        list[int] | None, typer.Option(min=1, help="Chunks to keep; may be repeated.", show_default="5000")
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Say what the manager alone costs a block, and what its policy keeps."""
    with clear_errors():
        check_writable(json_file)
        requests = read_trace(trace)
        runs = [(name, chunks) for name in policy or ["lru"] for chunks in cpu_chunks or [5_000]]
        figures = [manager_benchmark(requests, policy=name, cpu_chunks=chunks) for name, chunks in runs]
        show(manager_table(figures), manager_json(figures), json_file)


@bench.command(name="disk")
def bench_disk_command(
    *,
    directory: Annotated[Path, typer.Option("--dir", help="A directory on the disk to be measured.")],
    chunk_bytes: Annotated[
        str, typer.Option(metavar="SIZE,...", help="Bytes of the chunks.")
    ] = "64KiB,256KiB,1MiB,4MiB",
    threads: Annotated[int, typer.Option(min=1, help="Reads and writes at a time; fio's jobs too.")] = 8,
    size_bytes: Annotated[
        int, typer.Option("--bytes", parser=_size, metavar="SIZE", help="Of the files.", show_default="1GiB")
    ] = 1 << 30,
    repeat: Annotated[int, typer.Option(min=1, help="Turns, of which the medians are taken.")] = 5,
    json_file: JsonFile = None,
) -> None:
    """Store and load chunks on disk, against fio's random direct I/O in the same run where fio is installed."""
    with clear_errors():
        check_writable(json_file)
        sizes = [parse_size(size) for size in chunk_bytes.split(",")]
        result = run(
            disk_benchmark(
                directory=directory, chunk_bytes=sizes, threads=threads, size_bytes=size_bytes, repeat=repeat
            )
        )
        show(disk_table(result), result.to_json(), json_file)


@bench.command(name="recovery")
def bench_recovery_command(
    *,
    directory: Annotated[Path, typer.Option("--dir", help="A directory with 5 KB of room for each row.")],
    rows: Annotated[int, typer.Option(min=1000, help="Chunks that an earlier run has left.")] = 1_000_000,
    json_file: JsonFile = None,
) -> None:
    """Say how soon a disk tier serves after a restart, and knows all it has."""
    with clear_errors():
        check_writable(json_file)
        result = run(recovery_benchmark(directory=directory, rows=rows))
        show(recovery_table(result), result.to_json(), json_file)


@app.command(name="inspect")
def inspect_command(
    directories: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="A tier's directories, the first one first.")
    ],
    *,
    verify: Annotated[
        bool, typer.Option("--verify", help="Read and check every chunk; all directories are needed.")
    ] = False,
    json_file: JsonFile = None,
) -> None:
    """Say what lies in a disk tier's directory, how much, and since when."""
    with clear_errors():
        check_writable(json_file)
        inspection, verification = inspect_directory(directories[0]), None
        if verify:
            with progress(inspection.chunks, what="chunks", quiet=json_file == STDOUT) as advance:
                verification = verify_directories(directories, on_checked=advance)
        show(inspection_table(inspection, verification), inspection_json(inspection, verification), json_file)
    raise typer.Exit(0 if verification is None or verification.is_right else 1)


@bench.command(name="policy")
def bench_policy_command(
    traces: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TRACE...",
            help=f"Mooncake-format traces (JSON lines), or generated ones: {', '.join(WORKLOADS)}.",
            show_default="all that are generated",
        ),
    ] = None,
    *,
    policies: Annotated[str, typer.Option(metavar="NAME,...", help="Cache policies.")] = ",".join(BUILTIN_POLICIES),
    capacities: Annotated[str, typer.Option(metavar="N,...", help="Chunks to keep.")] = "100,300,1000,3000,10000",
    seeds: Annotated[int, typer.Option(min=1, help="Runs with other names and samples; means are shown.")] = 1,
    blocks: Annotated[int, typer.Option(min=1, help="Length of a generated trace.")] = 200_000,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.png", help="Draw hit ratio over capacity.")] = None,
    json_file: JsonFile = None,
) -> None:
    """Say what policies keep of traces, through the real manager, beside perfect foresight."""
    with clear_errors():
        check_writable(json_file)
        if plot is not None:
            check_writable(plot, option="--plot")
            import_matplotlib()
        names, sizes = _split(policies), [_count(size) for size in _split(capacities)]
        chosen = traces or list(WORKLOADS)
        with progress(len(chosen) * len(names) * len(sizes), what="runs", quiet=json_file == STDOUT) as advance:
            figures = policy_benchmark(
                chosen, policies=names, capacities=sizes, seeds=seeds, blocks=blocks, on_run=advance
            )
        if plot is not None:
            plot_policies(figures, plot)
        show(policy_table(figures), policy_json(figures), json_file)


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentError(f"--capacities must be whole numbers above 0, got {text!r}")
    return int(text)
