"""What the demo found, for people and for programs. Knows figures and how they are shown, not how they came about."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Group
from rich.table import Table

from aiokvoffload.cli.plotting import import_matplotlib
from aiokvoffload.errors import ArgumentError

BAR_WIDTH = 40
_WHERE = {
    "computed": "computed anew",
    "gpu": "in GPU memory",
    "cpu": "in CPU memory",
    "disk": "on disk, after a restart",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoReport:
    """Figures of one demo; docs/cli.md says how each is measured.

    Attributes:
        model: its name.
        revision: its version and data type.
        device: where the blocks lay: `cuda` or `host`.
        seconds: of all of it, the loading of the model included, twice.
        conversations: how many took turns.
        turns: of each.
        gpu_blocks: blocks in the paged pool.
        block_tokens: tokens of a block.
        block_bytes: bytes of a block, over all layers.
        prompt_tokens: of the first of the prompts that `ttft_ms` is measured with.
        tokens_identical: whether every answer was the same, token for token, as without offloading.
        ttft_ms: median milliseconds to the first token, by where the prompt's KV was.
        ttft_computed_tokens: of the first of the prompts, those that were computed, by the same.
        bytes: bytes moved, by direction; from disk by the second process, all others by the first.
        asked_tokens: tokens of all prompts of the conversations.
        computed_tokens: of them, those that were computed, without and with offloading.
        events: keys of all events, by tier and kind.
        sample: questions and answers of the first conversation.
    """

    model: str
    revision: str
    device: str
    seconds: float
    conversations: int
    turns: int
    gpu_blocks: int
    block_tokens: int
    block_bytes: int
    prompt_tokens: int
    tokens_identical: bool
    ttft_ms: dict[str, float]
    ttft_computed_tokens: dict[str, int]
    bytes: dict[str, int]
    asked_tokens: int
    computed_tokens: dict[str, int]
    events: dict[str, int]
    sample: list[tuple[str, str]]

    def to_json(self) -> str:
        """One JSON object with every attribute."""
        return json.dumps(asdict(self), indent=2)

    def table(self) -> Group:
        """The figures, the times as bars."""
        return Group(self._talk(), self._figures(), self._bars())

    def _talk(self) -> Table:
        table = Table(title=f"The first of {self.conversations} conversations, by {self.model}", show_header=False)
        for question, answer in self.sample:
            table.add_row(question, answer.strip())
        return table

    def _figures(self) -> Table:
        requests = self.conversations * self.turns
        table = Table(title=f"{requests} requests without and with offloading, {self.seconds:.0f} s in all")
        table.add_column("figure")
        table.add_column("value", justify="right")
        pool_tokens = self.gpu_blocks * self.block_tokens
        table.add_row("answers with and without offloading", _verdict(same=self.tokens_identical))
        table.add_row("engine's blocks", f"{pool_tokens:,} tokens, {self.gpu_blocks * self.block_bytes:,} B")
        table.add_row("prompt tokens", f"{self.asked_tokens:,}")
        table.add_row("computed without offloading", f"{self.computed_tokens['without']:,}")
        table.add_row("computed with offloading", f"{self.computed_tokens['with']:,}")
        for direction, size in self.bytes.items():
            table.add_row(direction.replace("_", " "), f"{size:,} B")
        for event, count in self.events.items():
            table.add_row(f"events: {event}", f"{count:,} keys")
        return table

    def _bars(self) -> Table:
        table = Table(title=f"Time to first token, prompt of {self.prompt_tokens} tokens", box=None)
        table.add_column("its KV was")
        table.add_column("computed", justify="right")
        table.add_column("ms", justify="right")
        table.add_column("")
        longest = max(self.ttft_ms.values())
        for source, milliseconds in self.ttft_ms.items():
            bar = "█" * max(1, round(BAR_WIDTH * milliseconds / longest))
            table.add_row(_WHERE[source], f"{self.ttft_computed_tokens[source]:,}", f"{milliseconds:,.0f}", bar)
        return table


def _verdict(*, same: bool) -> str:
    return "identical, token for token" if same else "[bold red]different[/]"


def plot_demo(report: DemoReport, path: Path) -> None:
    """Draw the times to the first token as bars.

    Raises:
        ArgumentError: matplotlib is not installed, or knows no such file format.
    """
    figure = import_matplotlib().Figure(figsize=(7, 2.6), layout="constrained")
    axes = figure.subplots()
    bars = axes.barh([_WHERE[source] for source in report.ttft_ms], list(report.ttft_ms.values()))
    axes.bar_label(bars, fmt="%.0f ms", padding=3)
    axes.invert_yaxis()
    axes.margins(x=0.15)
    axes.set(title=f"Time to first token, {report.model}, {report.prompt_tokens} tokens", xlabel="milliseconds")
    try:
        figure.savefig(path, dpi=120)
    except ValueError as error:
        raise ArgumentError(f"--plot {path}: {error}") from error
