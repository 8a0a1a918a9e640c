"""What every command does at a terminal: runs its coroutine, says errors in a line, shows figures. Knows no command."""

import asyncio
import atexit
import contextlib
import enum
import gc
import importlib.util
import os
import shutil
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console, Group
from rich.measure import Measurement
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from aiokvoffload.cli.interrupt import INTERRUPTED_LINE, INTERRUPTED_STATUS, leave_at_once, take_over
from aiokvoffload.cli.sizes import parse_size
from aiokvoffload.errors import ArgumentError, OffloadError

T = TypeVar("T")
EnumT = TypeVar("EnumT", bound=enum.Enum)

STDOUT = Path("-")
USAGE_STATUS = 2
MAX_COUNT = 100_000_000
"""Of what is counted or held; every number up to it is multiplied by others without leaving 64 bits."""
MAX_AT_ONCE = 1_000
"""Of what runs at once, or again and again."""
MAX_WIDTH = 1000
"""Of a table that is not shown on a terminal."""

Device = Annotated[str, typer.Option(help="Where the blocks lie: auto (what torch finds), cuda or host.")]
JsonFile = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", help="Write the figures as JSON too; - writes nothing else.")
]


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


class Loop(enum.Enum):
    """Event loops to choose from."""

    UVLOOP = "uvloop"
    ASYNCIO = "asyncio"


def run(main: Coroutine[Any, Any, T], *, loop: Loop = Loop.UVLOOP) -> T:
    """Run `main` on uvloop where that is wanted and installed, else on asyncio.

    Raises:
        KeyboardInterrupt: Ctrl-C cancelled it, and it has ended.
    """
    _own_process()
    on_uvloop = loop is Loop.UVLOOP and importlib.util.find_spec("uvloop") is not None
    loop_factory = importlib.import_module("uvloop").new_event_loop if on_uvloop else None
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        try:
            return runner.run(cancelled_by_ctrl_c(main))
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None


def _own_process() -> None:
    """Set what only a program may decide for its whole process, as a server would, so that its loop stays free."""
    # On the host device torch's work comes from streams, threads already: a pool of more would only starve the loop.
    if (torch := sys.modules.get("torch")) is not None:  # `top` and `events` do without
        torch.set_num_threads(1)
    # What is loaded by now stays: a full collection would walk all of torch on the loop, a tenth of a second each time.
    gc.freeze()
    atexit.register(gc.unfreeze)  # Triton complains at exit of what was never collected


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


def count(
    *,
    help: str,  # noqa: A002 - as typer calls it
    least: int = 1,
    most: int = MAX_COUNT,
    show_default: bool | str = True,
) -> Any:
    """An option that is a whole number, bounded before anything makes an array, a range or a thread of it."""
    return typer.Option(min=least, max=most, help=help, metavar="N", show_default=show_default)


def directory(text: str) -> Path:
    """A directory that has a name, as an option's parser."""
    # A path makes "." of it: what a variable of a shell that is not set would fill.
    if not text or "\0" in text:
        raise typer.BadParameter(f"a directory must have a name, got {text!r}")
    return Path(text)


def size(text: str | int) -> int:
    """A number of bytes, as an option's parser."""
    if isinstance(text, int):  # a default passes through here as well
        return text
    try:
        return parse_size(text)
    except OffloadError as error:
        raise typer.BadParameter(str(error)) from None


def size_or_zero(text: str | int) -> int:
    """The same, where 0 means none."""
    return 0 if text == "0" else size(text)


DiskDir = Annotated[
    Path | None,
    typer.Option(
        parser=directory, metavar="DIR", help="A directory for a disk tier below CPU memory; with --disk-bytes."
    ),
]
DiskBytes = Annotated[int | None, typer.Option(parser=size, metavar="SIZE", help="What the disk tier has room for.")]


def sizes(text: str) -> tuple[int, ...]:
    """Bytes of each size in a list.

    Raises:
        ArgumentError: one is no size.
    """
    return tuple(parse_size(part) for part in text.split(","))


def counts(text: str, *, option: str) -> tuple[int, ...]:
    """Each whole number in a list.

    Raises:
        ArgumentError: one is none, or out of bounds.
    """
    parts = [part.strip() for part in text.split(",")]
    # The length first: Python makes no number of thousands of digits.
    if not all(part.isdecimal() and len(part) < 20 and 1 <= int(part) <= MAX_COUNT for part in parts):
        raise ArgumentError(f"{option} must be whole numbers in [1, {MAX_COUNT}], got {text!r:.100}")
    return tuple(int(part) for part in parts)


def names(text: str, *, option: str) -> list[str]:
    """Each name of a list once.

    Raises:
        ArgumentError: one is empty.
    """
    found = list(dict.fromkeys(part.strip() for part in text.split(",")))
    if "" in found:
        raise ArgumentError(f"{option} must be names, got {text!r:.100}")
    return found


def choices(kind: type[EnumT], text: str, *, option: str) -> tuple[EnumT, ...]:
    """The members of `kind` whose values are listed in `text`.

    Raises:
        ArgumentError: one is unknown.
    """
    try:
        return tuple(kind(value) for value in text.split(","))
    except ValueError as error:
        known = ", ".join(str(member.value) for member in kind)
        raise ArgumentError(f"{option} must be among {known}, got {text!r}") from error


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
    is_new = not file.exists()
    if not is_new and not file.is_file():  # opening a pipe would wait for its reader
        return
    try:
        # Permissions do not say it: a file system may have none, and root has all of them.
        file.open("ab").close()
    except OSError as error:
        raise ArgumentError(f"{option} {file}: {error.strerror}: name a file in another folder") from error
    if is_new:
        file.unlink()


def show(table: Table | Group, json_text: str, json_file: Path | None) -> None:
    """A table on standard output, or JSON there, or JSON in a file beside the table."""
    if json_file == STDOUT:
        print(json_text)
        return
    console = Console(file=sys.stdout)
    if not console.is_terminal and "COLUMNS" not in os.environ:  # a pipe has no width that figures had to be cut for
        needed = Measurement.get(console, console.options.update(max_width=MAX_WIDTH), table).maximum
        console.width = max(console.width, needed)
    console.print(table)
    if json_file is not None:
        _write(json_file, json_text + "\n")


def _write(file: Path, text: str) -> None:
    """Put `text` in place of what the file has, or leave that as it is.

    Raises:
        ArgumentError: it cannot be written.
    """
    try:
        if file.exists() and not file.is_file():  # a pipe, or a device
            file.write_text(text, encoding="utf-8")
        else:
            _replace(file.resolve(), text)  # what a link leads to, and not the link
    except OSError as error:
        raise ArgumentError(f"--json {file} cannot be written: {error.strerror or error}") from error


def _replace(file: Path, text: str) -> None:
    beside = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        beside.write_text(text, encoding="utf-8")
        if file.exists():
            shutil.copymode(file, beside)
        beside.replace(file)
    finally:
        beside.unlink(missing_ok=True)
