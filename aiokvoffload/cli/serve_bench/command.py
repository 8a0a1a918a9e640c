"""`aiokvoffload bench serve` and its options. The model and what it needs are imported when it runs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from aiokvoffload.cli.deferred import Deferred
from aiokvoffload.cli.demo.command import stages
from aiokvoffload.cli.demo.shapes import require_name
from aiokvoffload.cli.plotting import import_matplotlib
from aiokvoffload.cli.serve_bench.options import ServeBenchOptions, whole_blocks
from aiokvoffload.cli.shell import (
    MAX_AT_ONCE,
    STDOUT,
    Device,
    JsonFile,
    check_writable,
    clear_errors,
    count,
    counts,
    directory,
    run,
    show,
    size,
    size_or_zero,
)
from aiokvoffload.config import COPY_ENGINES, CopyConfig

if TYPE_CHECKING:
    import torch

    from aiokvoffload.cli.serve_bench import measure as bench
    from aiokvoffload.cli.serve_bench import report
else:
    torch = Deferred("torch")
    bench = Deferred("aiokvoffload.cli.serve_bench.measure", extra="demo")
    report = Deferred("aiokvoffload.cli.serve_bench.report", extra="demo")

_COPY = CopyConfig()


def bench_serve_command(
    *,
    model: Annotated[
        str | None,
        typer.Option(help="random, random-1b, random-8b or smollm2.", show_default="random-8b on cuda, else random"),
    ] = None,
    prompt_tokens: Annotated[
        str | None,
        typer.Option(metavar="N,...", help="Lengths of prompts.", show_default="256 to 65536 on cuda, 64 to 1024 else"),
    ] = None,
    device: Device = "auto",
    block_tokens: Annotated[
        int | None, count(least=16, help="Tokens of a block.", show_default="64 on cuda, else 16")
    ] = None,
    piece_tokens: Annotated[
        int | None,
        count(least=16, help="Tokens of a prompt in one step.", show_default="4096 on cuda, else 256"),
    ] = None,
    repeat: Annotated[int, count(most=MAX_AT_ONCE, help="Measurements, of which medians are taken.")] = 3,
    cpu_bytes: Annotated[
        int | None,
        typer.Option(parser=size, metavar="SIZE", help="CPU memory for KV.", show_default="3 of the longest prompts"),
    ] = None,
    disk_dir: Annotated[
        Path | None,
        typer.Option(parser=directory, metavar="DIR", help="Measure hits on a disk too, in a folder made there."),
    ] = None,
    disk_max_tokens: Annotated[int, count(least=16, help="Longest prompt to be measured from disk.")] = 16_384,
    decode_rows: Annotated[
        int | None, count(least=0, help="Answers beside copies.", show_default="64 on cuda, else 4")
    ] = None,
    storing_prompts: Annotated[
        int | None, count(least=0, help="Prompts with and without storing.", show_default="12 on cuda, else 4")
    ] = None,
    copy_engine: Annotated[str, typer.Option(help=f"How the service copies: {', '.join(COPY_ENGINES)}.")] = "auto",
    staging_bytes: Annotated[
        int,
        typer.Option(
            parser=size, metavar="SIZE", help="GPU memory of the rings between a copy's stages.", show_default="128MiB"
        ),
    ] = _COPY.staging_bytes,
    programs: Annotated[int, count(most=MAX_AT_ONCE, help="Of the gathering kernel.")] = _COPY.programs,
    turn_bytes: Annotated[
        int,
        typer.Option(
            parser=size_or_zero,
            metavar="SIZE",
            help="Copied before others' copies come in between.",
            show_default="32MiB",
        ),
    ] = _COPY.turn_bytes,
    eager: Annotated[bool, typer.Option("--eager", help="Decode without CUDA graphs.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Measure every figure once.")] = False,
    json_file: JsonFile = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the times over the lengths.")] = None,
) -> None:
    """Say what hits in each tier bring the first token, against computing, and what loads and stores cost others."""
    with clear_errors():
        if model is not None:
            require_name(model)
        check_writable(json_file)
        check_writable(plot, option="--plot")
        if plot is not None:
            import_matplotlib()
        on_cuda = torch.cuda.is_available() if device == "auto" else device == "cuda"
        block = block_tokens or (64 if on_cuda else 16)
        lengths = whole_blocks("256,1024,4096,16384,65536" if on_cuda else "64,256,1024", block)
        options = ServeBenchOptions(
            model=model or ("random-8b" if on_cuda else "random"),
            device="cuda" if on_cuda else device,
            prompt_tokens=counts(prompt_tokens or lengths, option="--prompt-tokens"),
            block_tokens=block,
            piece_tokens=piece_tokens or int(whole_blocks("4096" if on_cuda else "256", block)),
            repeat=1 if quick else repeat,
            cpu_bytes=cpu_bytes,
            disk_dir=disk_dir,
            disk_max_tokens=disk_max_tokens,
            decode_rows=(64 if on_cuda else 4) if decode_rows is None else decode_rows,
            decode_context_tokens=512 if on_cuda else 64,
            window_s=0.4 if on_cuda else 0.2,
            storing_prompts=(12 if on_cuda else 4) if storing_prompts is None else storing_prompts,
            storing_tokens=2048 if on_cuda else 256,
            ceiling_bytes=(256 if on_cuda else 16) << 20,
            copy=CopyConfig(engine=copy_engine, staging_bytes=staging_bytes, programs=programs, turn_bytes=turn_bytes),
            eager=eager or not on_cuda,
        )
        with stages(bench.count_stages(options), quiet=json_file == STDOUT) as bar:
            benchmark = run(bench.measure(options, bar))
        show(report.serve_table(benchmark), benchmark.to_json(), json_file)
        if plot is not None:
            report.plot_serve(benchmark, plot)
