"""A forked process is one: it has a status, streams, signals and modules of its own."""

import os
import signal
from pathlib import Path

import aiokvoffload
from tests.forked import COMMAND, Forks, without
from tests.started import started


def test_a_program_has_arguments_streams_and_a_status(forks: Forks) -> None:
    ended = forks.run("print(*sys.argv[1:]); print('no', file=sys.stderr); sys.exit(3)", "one", "two")
    assert (ended.returncode, ended.stdout, ended.stderr) == (3, "one two\n", "no\n")


def test_a_program_that_fails_says_where(forks: Forks) -> None:
    ended = forks.run("1 / 0")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "ZeroDivisionError" in ended.stderr


def test_a_signal_ends_it_and_nobody_else(forks: Forks) -> None:
    with forks.start("import os, signal; print(os.getpid(), flush=True); signal.pause()") as child:
        assert int(child.stdout.readline()) != os.getpid()
        child.send_signal(signal.SIGTERM)
        assert child.wait().returncode == -signal.SIGTERM


def test_ctrl_c_arrives_although_whoever_started_the_tests_had_it_ignored() -> None:
    """As a shell's script does with what it does not wait for: tests and their programs waited for an end in vain."""
    code = "import signal, tests.conftest; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    program = f"""
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
os.execv(sys.executable, [sys.executable, "-c", {code!r}])
"""
    with started("-c", program, cwd=Path(__file__).parents[1]) as process:
        assert process.communicate(timeout=60) == ("True\n", "")


def test_what_is_not_installed_is_missing_in_our_modules_too(forks: Forks) -> None:
    ended = forks.run(without("typer") + COMMAND, "--help")
    assert (ended.returncode, ended.stderr) == (2, "aiokvoffload: typer is missing: pip install 'aiokvoffload[cli]'\n")
    assert forks.run(COMMAND, "--version").stdout == f"aiokvoffload {aiokvoffload.__version__}\n"
