"""Entry point of the `aiokvoffload` command: says its version, and what to install where the `cli` extra is missing.

What takes seconds to import is imported when a command has something to do, and Ctrl-C is one line by then.
"""

import importlib
import signal
import sys

import aiokvoffload
from aiokvoffload.cli.interrupt import leave_at_once, take_over

_EXTRA = {"rich", "typer"}


def main() -> int:
    """Run the command; returns the exit status."""
    take_over(leave_at_once)
    try:
        return _run(sys.argv[1:])
    finally:
        # Nothing is left to interrupt, and what the interpreter does at its end would answer with a traceback.
        take_over(signal.SIG_IGN)


def _run(arguments: list[str]) -> int:
    if arguments == ["--version"]:
        print(f"aiokvoffload {aiokvoffload.__version__}")
        return 0
    try:
        command = importlib.import_module("aiokvoffload.cli.app")
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _EXTRA:
            raise
        print(f"aiokvoffload: {missing} is missing: pip install 'aiokvoffload[cli]'", file=sys.stderr)
        return 2
    command.app(prog_name="aiokvoffload")
    return 0


if __name__ == "__main__":
    sys.exit(main())
