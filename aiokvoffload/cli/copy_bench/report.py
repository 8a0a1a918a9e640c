"""Figures of the copy benchmark for people, programs and documents. Knows formats."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table

from aiokvoffload.cli.copy_bench.measure import CopyFigures
from aiokvoffload.cli.plotting import import_matplotlib

COLUMNS = (
    ("engine", "left"),
    ("fragment", "right"),
    ("slot", "right"),
    ("slots", "left"),
    ("ways", "left"),
    ("GB/s", "right"),
    ("ceiling", "right"),
    ("%", "right"),
    ("submit µs", "right"),
    ("loop blocked µs (p99, max)", "right"),
    ("GEMM slowed", "right"),
    ("GEMV slowed", "right"),
)
_UNITS = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))


def size_text(size_bytes: int) -> str:
    """`2MiB` for 2097152: the largest unit of which it is a whole number."""
    for name, unit_bytes in _UNITS:
        if size_bytes % unit_bytes == 0:
            return f"{size_bytes // unit_bytes}{name}"
    return f"{size_bytes}B"


def copy_table(figures: Sequence[CopyFigures]) -> Table:
    """All of them, in the order in which they were measured."""
    table = Table(title="copies against contiguous copies of the same run")
    for name, side in COLUMNS:
        table.add_column(name, justify="right" if side == "right" else "left")
    for each in figures:
        table.add_row(
            each.engine if each.uses in {each.engine, "none"} else f"{each.engine} ({each.uses})",
            size_text(each.fragment_bytes),
            size_text(each.slot_bytes),
            each.slots,
            each.ways,
            f"{each.gigabytes_per_s:.1f}",
            f"{each.ceiling_gigabytes_per_s:.1f}",
            f"{each.percent:.1f}",
            f"{each.submit_us:,.0f}",
            f"{each.loop_blocked_us.p99:,.0f}, {each.loop_blocked_us.max:,.0f}",
            _factor(each.gemm_slowdown),
            _factor(each.gemv_slowdown),
        )
    return table


def _factor(factor: float | None) -> str:
    return "" if factor is None else f"{factor:.2f}"


def copy_json(figures: Sequence[CopyFigures]) -> str:
    """A list of objects, one for each."""
    return json.dumps([asdict(each) for each in figures], indent=2)


def plot_copies(figures: Sequence[CopyFigures], path: Path) -> None:
    """Rates over fragment sizes as PNG: a picture for each way, a line for each engine, slot size and order.

    Raises:
        ArgumentError: matplotlib is missing.
    """
    ways = list(dict.fromkeys(each.ways for each in figures))
    canvas = import_matplotlib().Figure(figsize=(5 * len(ways), 4.5), layout="constrained")
    axes = canvas.subplots(1, len(ways), squeeze=False)[0]
    for axis, way in zip(axes, ways, strict=True):
        axis.set(title=way, xlabel="fragment", xscale="log", ylabel="GB/s")  # a scale brings ticks of its own
        _plot_way(axis, [each for each in figures if each.ways == way])
        axis.set_ylim(bottom=0)
    handles, labels = axes[0].get_legend_handles_labels()
    canvas.legend(handles, labels, loc="outside lower center", ncols=3)
    canvas.savefig(path, dpi=120)


def _plot_way(axis: Any, figures: Sequence[CopyFigures]) -> None:
    sizes = sorted({each.fragment_bytes for each in figures})
    lines = list(dict.fromkeys((each.engine, each.slot_bytes, each.slots) for each in figures))
    for engine, slot_bytes, slots in lines:
        points = sorted(
            (each.fragment_bytes, each.gigabytes_per_s)
            for each in figures
            if (each.engine, each.slot_bytes, each.slots) == (engine, slot_bytes, slots)
        )
        axis.plot(*zip(*points, strict=True), marker="o", label=f"{engine}, {size_text(slot_bytes)} slots, {slots}")
    ceilings = [each.ceiling_gigabytes_per_s for each in figures]
    axis.axhline(sorted(ceilings)[len(ceilings) // 2], color="black", linestyle=":", label="contiguous")
    axis.set_xticks(sizes, [size_text(size) for size in sizes], rotation=60)
    axis.minorticks_off()
