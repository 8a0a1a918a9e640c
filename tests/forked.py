"""Programs in processes of their own, forked from one that has imported what takes seconds: torch and transformers.

They have signals, descriptors, an exit status and global state of their own, as any process. What they do not show is
how a process starts, and what the interpreter does at its end: for that, each family of commands has tests that start
one from nothing.
"""

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from typing import TextIO

COMMAND = "from aiokvoffload.cli.main import main; sys.exit(main())"
"""As a program: the command, which takes the program's arguments."""
END_S = 30
"""How long a process may take to end after it has closed its output."""
LONGEST_S = 110
"""Then it is killed, before its test is given up: threads that read what it says would go on and on."""
PRELOADED = (
    "aiokvoffload.cli.app",
    "aiokvoffload.cli.demo.show",
    "aiokvoffload.cli.serve.run",
    "aiokvoffload.cli.serve_bench.measure",
    "transformers.models.llama.modeling_llama",
)


def without(*packages: str) -> str:
    """How a program begins for which these packages are not installed; it imports our modules anew."""
    return (
        "for name in [name for name in sys.modules if name.split('.')[0] == 'aiokvoffload']: del sys.modules[name]\n"
        f"sys.modules.update(dict.fromkeys({packages!r}))\n"
    )


class Child:
    """A program that runs in `process`, and what it writes."""

    def __init__(self, process: ForkServerProcess, stdout: TextIO, stderr: TextIO) -> None:
        self._process, self.stdout, self.stderr = process, stdout, stderr

    def send_signal(self, number: signal.Signals) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    def wait(self) -> "subprocess.CompletedProcess[str]":
        """Its status, and what it has written that nobody has read yet."""
        shown, said = self.stdout.read(), self.stderr.read()
        self._process.join(END_S)
        status = self._process.exitcode
        assert status is not None, f"the process does not end; it said: {said}"
        return subprocess.CompletedProcess([], status, shown, said)


class Forks:
    """What programs are forked from: a process that ends with this one."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(list(PRELOADED))
        forkserver.ensure_running()  # now: it keeps descriptors, which no test leaves

    @contextlib.contextmanager
    def start(self, program: str, *arguments: str) -> Iterator[Child]:
        """Run `program` as `python -c` would, where `sys` is imported; at the end it is killed."""
        (stdout, child_stdout), (stderr, child_stderr) = (self._context.Pipe(duplex=False) for _ in range(2))
        arguments_of_run = (program, arguments, child_stdout, child_stderr)
        process = self._context.Process(target=_run, args=arguments_of_run, daemon=True)
        with stdout, stderr:
            with child_stdout, child_stderr:
                process.start()
            too_long = threading.Timer(LONGEST_S, process.kill)
            too_long.start()
            with _text(stdout) as shown, _text(stderr) as said:
                try:
                    yield Child(process, shown, said)
                finally:
                    too_long.cancel()
                    too_long.join()
                    process.kill()
                    process.join()
                    process.close()

    def run(self, program: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run `program` to its end."""
        with self.start(program, *arguments) as child:
            return child.wait()


def _text(connection: Connection) -> TextIO:
    return open(connection.fileno(), encoding="utf-8", closefd=False)


def _run(program: str, arguments: tuple[str, ...], stdout: Connection, stderr: Connection) -> None:
    for number, written in ((1, stdout), (2, stderr)):
        os.dup2(written.fileno(), number)
        written.close()
    sys.argv[:] = ["-c", *arguments]
    exec(program, {"__name__": "__main__", "sys": sys})  # noqa: S102 - a test's own
