"""Hit ratio over capacity, drawn. Knows the figures and matplotlib, which only this needs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aiokvoffload.cli.plotting import import_matplotlib
from aiokvoffload.cli.policy_bench import PolicyFigures
from aiokvoffload.errors import ArgumentError

_COLUMNS = 3


def plot_policies(figures: Sequence[PolicyFigures], path: Path) -> None:
    """Draw one diagram for each trace, with a line for each policy and one for the bound.

    Raises:
        ArgumentError: matplotlib is not installed, or knows no such file format.
    """
    traces = list(dict.fromkeys(each.trace for each in figures))
    columns = min(_COLUMNS, len(traces))
    rows = -(-len(traces) // columns)
    figure = import_matplotlib().Figure(figsize=(5 * columns, 3.6 * rows), layout="constrained")
    for axes, trace in zip(figure.subplots(rows, columns, squeeze=False).flat, traces, strict=False):
        _plot_trace(axes, trace, [each for each in figures if each.trace == trace])
    for axes in figure.axes[len(traces) :]:
        axes.set_axis_off()
    figure.axes[0].legend(fontsize="small")
    try:
        figure.savefig(path, dpi=120)
    except ValueError as error:
        raise ArgumentError(f"--plot {path}: {error}") from error


def _plot_trace(axes: Any, trace: str, figures: Sequence[PolicyFigures]) -> None:
    bounds = {each.capacity: each.bound for each in figures}
    axes.plot(sorted(bounds), [bounds[capacity] for capacity in sorted(bounds)], "k:", label="bound")
    for policy in dict.fromkeys(each.policy for each in figures):
        points = sorted((each.capacity, each.hit_ratio) for each in figures if each.policy == policy)
        width = 2.5 if policy == "adaptive" else 1.2
        axes.plot(*zip(*points, strict=True), marker=".", linewidth=width, label=policy)
    axes.set(title=trace, xscale="log", xlabel="capacity, chunks", ylabel="hit ratio", ylim=(0, None))
