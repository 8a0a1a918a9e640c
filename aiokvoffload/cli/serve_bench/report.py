"""The figures for people: tables and a picture. Knows how they are shown, not how they came about."""

from pathlib import Path
from typing import Any

from rich.console import Group
from rich.table import Table

from aiokvoffload.cli.plotting import import_matplotlib
from aiokvoffload.cli.serve_bench.figures import HitFigure, ServeBenchmark
from aiokvoffload.errors import ArgumentError


def serve_table(benchmark: ServeBenchmark) -> Group:
    """All of it."""
    return Group(_lengths(benchmark), _hits(benchmark), _others(benchmark), _bars(benchmark))


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title)
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index else "left")
    return table


def _lengths(benchmark: ServeBenchmark) -> Table:
    title = f"Computing: {benchmark.revision}, pieces of {benchmark.piece_tokens:,}, ms"
    columns = ("prompt", "plain", "engine", "ratio", "plain, last 16", "engine, last 16", "runs")
    table = _table(title, *columns)
    for each in benchmark.lengths:
        times = (each.plain_ms, each.engine_ms), (each.plain_last_ms, each.last_ms)
        table.add_row(
            f"{each.prompt_tokens:,}",
            *(f"{time:,.1f}" for time in times[0]),
            f"{each.plain_ratio:.2f}",
            *(f"{time:,.1f}" for time in times[1]),
            f"{each.measurements}",
        )
    return table


def _hits(benchmark: ServeBenchmark) -> Table:
    table = _table("Time to first token", "prompt", "hit", "tier", "bytes", "TTFT, ms", "at ceiling", "sooner", "runs")
    for hit in benchmark.hits:
        computed_ms = benchmark.length(hit.prompt_tokens).engine_ms
        table.add_row(
            f"{hit.prompt_tokens:,}",
            f"{hit.hit_percent} %",
            hit.tier,
            f"{hit.loaded_bytes:,}",
            f"{hit.ttft_ms:,.1f}",
            f"{benchmark.ideal_ms(hit):,.1f}" if hit.loaded_bytes else "",
            f"{computed_ms / hit.ttft_ms:.2f} x",
            f"{hit.measurements}",
        )
    return table


def _others(benchmark: ServeBenchmark) -> Table:
    table = _table(f"The rest, {benchmark.seconds:.0f} s in all", "figure", "value")
    for ways, gbps in benchmark.ceiling_gbps.items():
        table.add_row(f"contiguous copies, {ways}", f"{gbps:.1f} GB/s")
    for tier, tokens in benchmark.break_even_tokens.items():
        cost = benchmark.costs.tiers[tier]
        table.add_row(f"a load from {tier}", f"{cost.latency_s * 1e3:.2f} ms + {cost.token_s * 1e6:.2f} µs a token")
        longest = f"not up to {benchmark.costs.compute[-1][0]:,} tokens"
        table.add_row(f"loading from {tier} is sooner from", longest if tokens is None else f"{tokens:,} tokens")
    if (decode := benchmark.decode) is not None:
        table.add_row(f"decoding {decode.rows} rows alone", f"{decode.alone_tokens_per_s:,.0f} tokens/s")
        rates = f"{decode.load_gbps:.1f} in, {decode.store_gbps:.1f} out GB/s"
        table.add_row(f"beside copies, {rates}", f"{decode.beside_tokens_per_s:,.0f} tokens/s")
    if (storing := benchmark.storing) is not None:
        what = f"{storing.prompts} prompts of {storing.prompt_tokens:,}"
        table.add_row(f"{what}, nothing stored", f"{storing.without_tokens_per_s:,.0f} tokens/s")
        table.add_row(f"{what}, all stored", f"{storing.with_tokens_per_s:,.0f} tokens/s")
    return table


def _bars(benchmark: ServeBenchmark) -> Table:
    table = _table("Expected of an 8B model on one H200", "what", "measured", "at most", "")
    for bar in benchmark.bars:
        met = "met" if bar.met else "[bold red]not met[/]"
        table.add_row(bar.what, f"{bar.value:,.2f} {bar.unit}", f"{bar.limit:,.2f} {bar.unit}", met)
    return table


def plot_serve(benchmark: ServeBenchmark, path: Path) -> None:
    """Draw time to first token over prompt length: computed, plain, and for each tier and share of hits.

    Raises:
        ArgumentError: matplotlib is not installed, or knows no such file format.
    """
    figure = import_matplotlib().Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    lengths = [each.prompt_tokens for each in benchmark.lengths]
    axes.plot(lengths, [each.plain_ms for each in benchmark.lengths], "k:", label="plain Hugging Face")
    axes.plot(lengths, [each.engine_ms for each in benchmark.lengths], "k", marker="o", label="computed")
    for tier, percent in dict.fromkeys((hit.tier, hit.hit_percent) for hit in benchmark.hits if hit.hit_percent):
        _plot_hits(axes, [hit for hit in benchmark.hits if (hit.tier, hit.hit_percent) == (tier, percent)])
    axes.set(title=f"{benchmark.model}, time to first token", xlabel="prompt, tokens", ylabel="ms")
    axes.set(xscale="log", yscale="log")
    axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
    axes.minorticks_off()
    axes.legend(fontsize="small")
    try:
        figure.savefig(path, dpi=120)
    except ValueError as error:
        raise ArgumentError(f"--plot {path}: {error}") from error


def _plot_hits(axes: Any, hits: list[HitFigure]) -> None:
    label = f"{hits[0].hit_percent} % in {hits[0].tier}"
    axes.plot([hit.prompt_tokens for hit in hits], [hit.ttft_ms for hit in hits], marker=".", label=label)
