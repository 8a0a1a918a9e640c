"""The command and its options. Knows the terminal; the work is done by the modules it calls."""

import contextlib
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.live import Live

import aiokvoffload
from aiokvoffload import registry
from aiokvoffload.cli.benches import bench
from aiokvoffload.cli.deferred import Deferred
from aiokvoffload.cli.demo.command import demo_command
from aiokvoffload.cli.serve.command import serve_command
from aiokvoffload.cli.shell import (
    STDOUT,
    Device,
    DiskBytes,
    DiskDir,
    JsonFile,
    check_writable,
    clear_errors,
    count,
    progress,
    run,
    show,
    size,
)
from aiokvoffload.cli.traces import SAMPLE_TRACE
from aiokvoffload.config import METRICS_PORT
from aiokvoffload.errors import ArgumentError

if TYPE_CHECKING:
    from aiokvoffload.cli import events_tail, inspect, replay, scrape, top, top_view
    from aiokvoffload.cli import trace as trace_file
    from aiokvoffload.tiering.disk import inspection
else:
    events_tail = Deferred("aiokvoffload.cli.events_tail")
    inspect = Deferred("aiokvoffload.cli.inspect")
    inspection = Deferred("aiokvoffload.tiering.disk.inspection")
    replay = Deferred("aiokvoffload.cli.replay")
    scrape = Deferred("aiokvoffload.cli.scrape")
    top = Deferred("aiokvoffload.cli.top")
    top_view = Deferred("aiokvoffload.cli.top_view")
    trace_file = Deferred("aiokvoffload.cli.trace")

app = typer.Typer(name="aiokvoffload", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
app.add_typer(bench)
app.command(name="demo")(demo_command)
app.command(name="serve")(serve_command)

POLICIES = ", ".join(registry.names("policies"))


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


@app.command(name="replay")
def replay_command(
    trace: Annotated[
        Path, typer.Argument(metavar="TRACE", help="Mooncake-format trace (JSON lines).", show_default="a sample")
    ] = SAMPLE_TRACE,
    *,
    requests: Annotated[int | None, count(help="Only the first N requests.")] = None,
    policy: Annotated[str, typer.Option(help=f"Cache policy of the CPU tier: {POLICIES}.")] = "lru",
    gpu_blocks: Annotated[
        int | None, count(help="Blocks in GPU memory.", show_default="4 times the longest prompt")
    ] = None,
    cpu_chunks: Annotated[int, count(help="Chunks that CPU memory holds.")] = 5_000,
    chunk_bytes: Annotated[
        int | None,
        typer.Option(parser=size, metavar="SIZE", help="Bytes of a chunk.", show_default="16KiB on host, 1MiB on cuda"),
    ] = None,
    device: Device = "auto",
    concurrency: Annotated[int, count(help="Requests in service at a time.")] = 16,
    verify: Annotated[bool, typer.Option("--verify", help="Compare every loaded byte.")] = False,
    disk_dir: DiskDir = None,
    disk_bytes: DiskBytes = None,
    events: Annotated[
        str | None, typer.Option(metavar="ENDPOINT", help="Publish KV-cache events: tcp://*:5557.")
    ] = None,
    events_replay: Annotated[
        str | None, typer.Option(metavar="ENDPOINT", help="Replay and snapshots of them: tcp://*:5558.")
    ] = None,
    metrics_port: Annotated[
        int | None, typer.Option(min=1, max=65535, metavar="PORT", help="Serve metrics on 127.0.0.1 meanwhile.")
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Replay a trace as an async server would, and say what it brought."""
    with clear_errors():
        check_writable(json_file)
        if events_replay is not None and events is None:
            raise ArgumentError("--events-replay belongs to --events: what is replayed is what was published there")
        trace_requests = trace_file.read_trace(trace, limit=requests)
        replay_options = replay.ReplayOptions(
            policy=policy,
            gpu_blocks=gpu_blocks,
            cpu_chunks=cpu_chunks,
            chunk_bytes=chunk_bytes,
            device=device,
            concurrency=concurrency,
            verify=verify,
            disk_dir=disk_dir,
            disk_bytes=disk_bytes,
            events=events,
            events_replay=events_replay,
            metrics_port=metrics_port,
            trace_name="sample" if trace == SAMPLE_TRACE else trace.name,
        )
        with progress(len(trace_requests), quiet=json_file == STDOUT) as advance:
            report = run(replay.replay(trace_requests, replay_options, on_served=advance))
        show(report.table(), report.to_json(), json_file)
    raise typer.Exit(0 if report.ok else 1)


@app.command(name="top")
def top_command(
    url: Annotated[
        str, typer.Argument(metavar="URL", help="The metrics endpoint; /metrics may be left out.")
    ] = f"http://127.0.0.1:{METRICS_PORT}/metrics",
    *,
    interval: Annotated[float, typer.Option(min=0.1, max=3600, metavar="SECONDS", help="Between two looks.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Show the figures of one interval and end.")] = False,
    json_file: JsonFile = None,
) -> None:
    """Watch a running service through its metrics endpoint, until Ctrl-C."""
    with clear_errors():
        check_writable(json_file)
        if json_file is not None and not once:
            raise ArgumentError("--json belongs to --once: what is watched has no end")
        address = scrape.endpoint(url)
        if once:
            seen = run(top.look_once(address, interval))
            show(top_view.view(seen, "", url=address), seen.to_json(), json_file)
        else:
            _watch(address, interval)


def _watch(url: str, interval_s: float) -> None:
    with contextlib.suppress(KeyboardInterrupt), Live(auto_refresh=False) as live:

        def update(seen: top.TopFigures | None, trouble: str) -> None:
            live.update(top_view.view(seen, trouble, url=url), refresh=True)

        run(top.watch(url, interval_s, update))


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
        found, verification = inspection.inspect_directory(directories[0]), None
        if len(directories) > 1 and len(directories) != found.num_directories:
            raise ArgumentError(
                f"{directories[0]} is one of {found.num_directories} directories, {len(directories)} are named: name "
                "it alone, or all in order"
            )
        if verify:
            with progress(found.chunks, what="chunks", quiet=json_file == STDOUT) as advance:
                verification = inspection.verify_directories(directories, on_checked=advance)
        table, text = inspect.inspection_table(found, verification), inspect.inspection_json(found, verification)
        show(table, text, json_file)
    raise typer.Exit(0 if verification is None or verification.is_right else 1)


@app.command(name="events")
def events_command(
    endpoint: Annotated[str, typer.Argument(metavar="ENDPOINT", help="Of the publisher: tcp://host:5557.")],
    *,
    replay: Annotated[
        str | None, typer.Option(metavar="ENDPOINT", help="Where to ask for what was missed: tcp://host:5558.")
    ] = None,
    topic: Annotated[str, typer.Option(help="Only messages whose topic begins so.")] = "",
    after: Annotated[int | None, typer.Option(metavar="N", help="Begin behind this record; needs --replay.")] = None,
    snapshot: Annotated[
        bool, typer.Option("--snapshot", help="Say first what is resident, which vLLM cannot; needs --replay.")
    ] = False,
    limit: Annotated[int | None, count(help="End after so many lines.")] = None,
    json_lines: Annotated[bool, typer.Option("--json-lines", help="One JSON object a line.")] = False,
) -> None:
    """Follow a publisher of KV-cache events, of this library or of vLLM, and show what it tells."""
    with clear_errors():
        if replay is None and (snapshot or after is not None):
            raise ArgumentError("--snapshot and --after need --replay: where to ask")
        options = events_tail.TailOptions(
            endpoint=endpoint, replay_endpoint=replay, topic=topic, after=after, snapshot=snapshot, limit=limit
        )
        say = events_tail.as_json if json_lines else events_tail.as_text
        on_quiet = partial(
            typer.echo, f"aiokvoffload: nothing heard from {endpoint} yet; waiting, until Ctrl-C", err=True
        )
        run(events_tail.tail(options, lambda line: print(say(line), flush=True), on_quiet=on_quiet))
