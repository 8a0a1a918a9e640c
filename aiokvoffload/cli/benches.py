"""The benchmarks as commands. Knows their options; the work is done by the modules it calls."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group

from aiokvoffload import registry
from aiokvoffload.cli.copy_bench.options import ENGINES, CopyOptions, SlotOrder, Ways
from aiokvoffload.cli.deferred import Deferred
from aiokvoffload.cli.plotting import import_matplotlib
from aiokvoffload.cli.poller_figures import TRANSFER_BYTES, poller_tables
from aiokvoffload.cli.serve_bench.command import bench_serve_command
from aiokvoffload.cli.shell import (
    MAX_AT_ONCE,
    STDOUT,
    Device,
    JsonFile,
    Loop,
    check_writable,
    choices,
    clear_errors,
    count,
    counts,
    names,
    progress,
    run,
    show,
    size,
    size_or_zero,
    sizes,
)
from aiokvoffload.cli.traces import SAMPLE_TRACE
from aiokvoffload.cli.traffic_kinds import KINDS
from aiokvoffload.config import CopyConfig, HostMemory

if TYPE_CHECKING:
    from aiokvoffload.cli import (
        arena_bench,
        disk_bench,
        events_bench,
        loop_bench,
        manager_bench,
        policy_bench,
        policy_plot,
        poller_bench,
        recovery_bench,
    )
    from aiokvoffload.cli import trace as trace_file
    from aiokvoffload.cli.copy_bench import measure, report
else:
    arena_bench = Deferred("aiokvoffload.cli.arena_bench")
    disk_bench = Deferred("aiokvoffload.cli.disk_bench")
    events_bench = Deferred("aiokvoffload.cli.events_bench")
    loop_bench = Deferred("aiokvoffload.cli.loop_bench")
    manager_bench = Deferred("aiokvoffload.cli.manager_bench")
    policy_bench = Deferred("aiokvoffload.cli.policy_bench")
    policy_plot = Deferred("aiokvoffload.cli.policy_plot")
    poller_bench = Deferred("aiokvoffload.cli.poller_bench")
    recovery_bench = Deferred("aiokvoffload.cli.recovery_bench")
    trace_file = Deferred("aiokvoffload.cli.trace")
    measure = Deferred("aiokvoffload.cli.copy_bench.measure")
    report = Deferred("aiokvoffload.cli.copy_bench.report")

bench = typer.Typer(name="bench", help="Measure parts of the library on this machine.", no_args_is_help=True)
bench.command(name="serve")(bench_serve_command)
_COPY = CopyOptions()
BUILTIN_POLICIES = tuple(registry.BUILTIN["policies"])


@bench.command(name="copy")
def bench_copy_command(
    *,
    fragment_bytes: Annotated[
        str, typer.Option(metavar="SIZES", help="One block in one tensor.")
    ] = "2KiB,16KiB,128KiB,2MiB",
    slot_bytes: Annotated[str, typer.Option(metavar="SIZES", help="One chunk.")] = "2MiB",
    slots: Annotated[str, typer.Option(help="Orders of slots: adjacent, scattered, aged.")] = "scattered",
    job_bytes: Annotated[
        int, typer.Option(parser=size, metavar="SIZE", help="One job.", show_default="256MiB")
    ] = _COPY.job_bytes,
    jobs: Annotated[int, count(most=MAX_AT_ONCE, help="Jobs at once in each direction.")] = _COPY.jobs,
    pool_bytes: Annotated[
        int, typer.Option(parser=size, metavar="SIZE", help="GPU memory, and CPU memory.", show_default="2GiB")
    ] = _COPY.pool_bytes,
    directions: Annotated[str, typer.Option(help="Which: d2h, h2d, both.")] = "d2h,h2d,both",
    engines: Annotated[str, typer.Option(help=f"Which: {', '.join(ENGINES)}.")] = "auto",
    compute: Annotated[bool, typer.Option("--compute", help="Run a GEMM and a GEMV beside the copies.")] = False,
    staging_bytes: Annotated[
        int, typer.Option(parser=size_or_zero, metavar="SIZE", help="GPU memory for rings.", show_default="128MiB")
    ] = _COPY.copy.staging_bytes,
    programs: Annotated[int, count(most=MAX_AT_ONCE, help="Of the gathering kernel.")] = _COPY.copy.programs,
    turn_bytes: Annotated[
        int,
        typer.Option(
            parser=size_or_zero, metavar="SIZE", help="After which others' copies come.", show_default="32MiB"
        ),
    ] = _COPY.copy.turn_bytes,
    trace: Annotated[Path, typer.Option(help="What ages a pool.", show_default="a sample")] = SAMPLE_TRACE,
    device: Device = "auto",
    repeat: Annotated[int, count(most=MAX_AT_ONCE, help="Measurements, of which medians are taken.")] = _COPY.repeat,
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
            copy=CopyConfig(staging_bytes=staging_bytes, programs=programs, turn_bytes=turn_bytes),
        )
        figures: list[measure.CopyFigures] = []
        with progress(copy_options.combinations, what="measurements", quiet=json_file == STDOUT) as advance:

            def take(measured: measure.CopyFigures) -> None:
                figures.append(measured)
                advance()

            run(measure.measure(copy_options, take))
        show(report.copy_table(figures), report.copy_json(figures), json_file)
        if plot is not None:
            report.plot_copies(figures, plot)


@bench.command(name="loop")
def bench_loop_command(
    *,
    requests: Annotated[int, count(most=100_000, help="Requests at once.")] = 64,
    keys: Annotated[int, count(help="Keys of each request's chain.")] = 4096,
    cpu_chunks: Annotated[int | None, count(help="Chunks that CPU memory holds.", show_default="all of them")] = None,
    device: Device = "auto",
    json_file: JsonFile = None,
) -> None:
    """Say how long the event loop is blocked while many requests move long chains at once."""
    with clear_errors():
        check_writable(json_file)
        result = run(
            loop_bench.loop_benchmark(requests=requests, keys_per_request=keys, cpu_chunks=cpu_chunks, device=device)
        )
        show(loop_bench.loop_table(result), result.to_json(), json_file)


@bench.command(name="arena")
def bench_arena_command(
    *,
    size_bytes: Annotated[
        int, typer.Option("--bytes", parser=size, metavar="SIZE", help="CPU memory.", show_default="8GiB")
    ] = 8 << 30,
    chunk_bytes: Annotated[
        int, typer.Option(parser=size, metavar="SIZE", help="Bytes of a chunk.", show_default="2MiB")
    ] = 2 << 20,
    piece_bytes: Annotated[
        int | None,
        typer.Option(parser=size, metavar="SIZE", help="Memory pinned in one go.", show_default="the library's"),
    ] = None,
    memory: Annotated[HostMemory, typer.Option(help="What kind of memory.")] = HostMemory.ANONYMOUS,
    device: Device = "auto",
    json_file: JsonFile = None,
) -> None:
    """Say how soon a service is usable and all its memory pinned, against torch's pinned allocator in the same run."""
    with clear_errors():
        check_writable(json_file)
        benchmark = arena_bench.arena_benchmark(
            size_bytes=size_bytes, chunk_bytes=chunk_bytes, piece_bytes=piece_bytes, memory=memory, device=device
        )
        result = run(benchmark)
        show(arena_bench.arena_table(result), result.to_json(), json_file)


@bench.command(name="poller")
def bench_poller_command(
    *,
    transfer_bytes: Annotated[
        str, typer.Option(metavar="SIZE,...", help="Bytes of the transfers whose lag is measured.")
    ] = ",".join(f"{size >> 10}KiB" for size in TRANSFER_BYTES),
    seconds: Annotated[float, typer.Option(min=0.01, max=3600, help="Of each phase.")] = 1.0,
    loop: Annotated[Loop, typer.Option(help="The event loop.")] = Loop.UVLOOP,
    fragments: Annotated[
        int, count(least=0, most=1_000_000, help="Measure lags beside jobs of so many fragments and busy threads, too.")
    ] = 0,
    device: Device = "auto",
    json_file: JsonFile = None,
) -> None:
    """Say how soon a coroutine goes on after its transfer, and what the waiting costs the loop's core."""
    with clear_errors():
        check_writable(json_file)
        measured = poller_bench.poller_benchmark(
            transfer_bytes=sizes(transfer_bytes), seconds=seconds, device=device, fragments=fragments
        )
        result = run(measured, loop=loop)
        show(Group(*poller_tables(result)), result.to_json(), json_file)


@bench.command(name="manager")
def bench_manager_command(
    trace: Annotated[Path, typer.Argument(help="Mooncake-format trace (JSON lines).", show_default="a sample")] = (
        SAMPLE_TRACE
    ),
    *,
    policy: Annotated[list[str] | None, typer.Option(help="Cache policy; may be repeated.", show_default="lru")] = None,
    cpu_chunks: Annotated[list[int] | None, count(help="Chunks to keep; may be repeated.", show_default="5000")] = None,
    pause_us: Annotated[
        int, count(least=0, most=10_000, help="Sleep before each call, in µs, as 200: then caches are cold.")
    ] = 0,
    json_file: JsonFile = None,
) -> None:
    """Say what the manager alone costs a block, and what its policy keeps."""
    with clear_errors():
        check_writable(json_file)
        requests = trace_file.read_trace(trace)
        runs = [(name, chunks) for name in policy or ["lru"] for chunks in cpu_chunks or [5_000]]
        figures = [
            manager_bench.manager_benchmark(requests, policy=name, cpu_chunks=chunks, pause_us=pause_us)
            for name, chunks in runs
        ]
        show(manager_bench.manager_table(figures), manager_bench.manager_json(figures), json_file)


@bench.command(name="disk")
def bench_disk_command(
    *,
    directory: Annotated[Path, typer.Option("--dir", help="A directory on the disk to be measured.")],
    chunk_bytes: Annotated[
        str, typer.Option(metavar="SIZE,...", help="Bytes of the chunks.")
    ] = "64KiB,256KiB,1MiB,4MiB",
    threads: Annotated[int, count(most=MAX_AT_ONCE, help="Threads that read and write, and fio's jobs.")] = 8,
    size_bytes: Annotated[
        int, typer.Option("--bytes", parser=size, metavar="SIZE", help="Of the files.", show_default="1GiB")
    ] = 1 << 30,
    repeat: Annotated[int, count(most=MAX_AT_ONCE, help="Turns, of which the medians are taken.")] = 5,
    json_file: JsonFile = None,
) -> None:
    """Store and load chunks on disk, against fio's random direct I/O in the same run where fio is installed."""
    with clear_errors():
        check_writable(json_file)
        measured = disk_bench.disk_benchmark(
            directory=directory,
            chunk_bytes=sizes(chunk_bytes),
            threads=threads,
            size_bytes=size_bytes,
            repeat=repeat,
        )
        result = run(measured)
        show(disk_bench.disk_table(result), result.to_json(), json_file)


@bench.command(name="recovery")
def bench_recovery_command(
    *,
    directory: Annotated[Path, typer.Option("--dir", help="A directory with 5 KB of room for each row.")],
    rows: Annotated[int, count(least=1000, most=10**15, help="Chunks that an earlier run has left.")] = 1_000_000,
    json_file: JsonFile = None,
) -> None:
    """Say how soon a disk tier serves after a restart, and knows all it has."""
    with clear_errors():
        check_writable(json_file)
        result = run(recovery_bench.recovery_benchmark(directory=directory, rows=rows))
        show(recovery_bench.recovery_table(result), result.to_json(), json_file)


@bench.command(name="policy")
def bench_policy_command(
    traces: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TRACE...",
            help=f"Mooncake-format traces (JSON lines), or generated ones: {', '.join(KINDS)}.",
            show_default="all that are generated",
        ),
    ] = None,
    *,
    policies: Annotated[str, typer.Option(metavar="NAME,...", help="Cache policies.")] = ",".join(BUILTIN_POLICIES),
    capacities: Annotated[str, typer.Option(metavar="N,...", help="Chunks to keep.")] = "100,300,1000,3000,10000",
    seeds: Annotated[int, count(most=MAX_AT_ONCE, help="Runs with other names and samples; means are shown.")] = 1,
    blocks: Annotated[int, count(help="Length of a generated trace.")] = 200_000,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.png", help="Draw hit ratio over capacity.")] = None,
    json_file: JsonFile = None,
) -> None:
    """Say what policies keep of traces, through the real manager, beside perfect foresight."""
    with clear_errors():
        check_writable(json_file)
        if plot is not None:
            check_writable(plot, option="--plot")
            import_matplotlib()
        listed, kept = names(policies, option="--policies"), counts(capacities, option="--capacities")
        chosen = traces or list(KINDS)
        runs = (1 + len(chosen)) * len(listed) * len(kept)
        with progress(runs, what="runs", quiet=json_file == STDOUT) as advance:
            figures = policy_bench.policy_benchmark(
                chosen, policies=listed, capacities=kept, seeds=seeds, blocks=blocks, on_run=advance
            )
        if plot is not None:
            policy_plot.plot_policies(figures, plot)
        show(policy_bench.policy_table(figures), policy_bench.policy_json(figures), json_file)


@bench.command(name="events")
def bench_events_command(
    *,
    keys_per_s: Annotated[int, count(help="Keys published a second.")] = 200_000,
    keys_per_record: Annotated[int, count(most=100_000, help="Keys of one record.")] = 16,
    subscribers: Annotated[int, count(most=MAX_AT_ONCE, help="Subscribers on the same loop.")] = 8,
    seconds: Annotated[float, typer.Option(min=0.05, max=3600, help="Of each phase.")] = 2.0,
    repeat: Annotated[int, count(most=MAX_AT_ONCE, help="Turns, of which the medians are taken.")] = 5,
    json_file: JsonFile = None,
) -> None:
    """Say what publishing costs, what subscribers get, and what one that stalls costs the others."""
    with clear_errors():
        check_writable(json_file)
        asked = events_bench.EventsOptions(
            keys_per_s=keys_per_s,
            keys_per_record=keys_per_record,
            subscribers=subscribers,
            seconds=seconds,
            repeat=repeat,
        )
        result = run(events_bench.events_benchmark(asked))
        show(events_bench.events_tables(result), result.to_json(), json_file)
