import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
import typer
from typer.testing import CliRunner

import aiokvoffload
from aiokvoffload.cli.app import app
from aiokvoffload.cli.shell import clear_errors, run
from aiokvoffload.errors import BrokenError
from tests.cli.newcomer import run_with_only
from tests.forked import COMMAND, Forks

HUGE = "9" * 20
GARBLED = '{"hash_ids": [0]}\n{"hash_ids": [0,\n'


@pytest.fixture
def runner() -> CliRunner:
    return CliRunner()


def python(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)  # noqa: S603


def test_help_names_the_commands_and_their_options(runner: CliRunner) -> None:
    assert {"demo", "serve", "replay", "bench"} <= set(runner.invoke(app, ["--help"]).output.split())
    assert {"copy", "loop"} <= set(runner.invoke(app, ["bench", "--help"]).output.split())
    shown = runner.invoke(app, ["replay", "--help"], env={"COLUMNS": "200", "NO_COLOR": "1"}).output
    for option in ("requests", "policy", "gpu-blocks", "cpu-chunks", "chunk-bytes", "device", "concurrency", "verify"):
        assert f"--{option}" in shown
    assert "lru, arc" in shown
    assert "[default: (16KiB on host, 1MiB on cuda)]" in shown


def test_the_version_is_shown_without_importing_torch() -> None:
    result = python("-X", "importtime", "-m", "aiokvoffload", "--version")
    assert (result.returncode, result.stdout) == (0, f"aiokvoffload {aiokvoffload.__version__}\n")
    assert not re.search(r"\btorch\b", result.stderr)


def test_the_help_of_every_command_and_a_usage_error_import_neither_torch_nor_numpy() -> None:
    every_command = """
import contextlib, sys
import typer
from aiokvoffload.cli.app import app

def ask(group, path):
    for name, command in group.commands.items():
        for argument in ("--help", "--no-such-option"):
            with contextlib.suppress(SystemExit):
                app([*path, name, argument], prog_name="aiokvoffload")
        if hasattr(command, "commands"):
            ask(command, [*path, name])

with contextlib.suppress(SystemExit):
    app(["--help"], prog_name="aiokvoffload")
ask(typer.main.get_command(app), [])
sys.exit("torch" in sys.modules or "numpy" in sys.modules)
"""
    result = python("-c", every_command)
    assert result.returncode == 0, result.stderr
    assert "bench events [OPTIONS]" in result.stdout
    assert result.stderr.count("No such option: --no-such-option") == result.stdout.count("Usage: aiokvoffload") - 1


def test_the_version_is_an_option_among_others(runner: CliRunner) -> None:
    assert runner.invoke(app, ["--version", "replay"]).output == f"aiokvoffload {aiokvoffload.__version__}\n"


@pytest.mark.parametrize("arguments", [["--help"], ["replay", "--requests", "2", "--device", "host"]])
def test_the_readmes_first_commands_need_nothing_beyond_their_extra(arguments: list[str]) -> None:
    """A package that only the tests bring would go unnoticed here and fail on a newcomer's machine."""
    result = run_with_only("cli", *arguments)
    assert result.returncode == 0, result.stderr


def test_a_port_in_use_is_named_with_its_option(runner: CliRunner) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        result = runner.invoke(app, ["replay", "--requests", "5", "--device", "host", "--metrics-port", port])
    said = f"aiokvoffload: --metrics-port {port} cannot be listened on: Address already in use\n"
    assert (result.exit_code, result.stderr) == (2, said)


def test_a_missing_trace_is_one_line_and_status_2(runner: CliRunner) -> None:
    result = runner.invoke(app, ["replay", "nowhere.jsonl"])
    assert result.exit_code == 2
    assert result.stderr == "aiokvoffload: trace nowhere.jsonl cannot be read: No such file or directory\n"


def test_a_garbled_line_is_named_and_status_2(runner: CliRunner, tmp_path: Path) -> None:
    trace = tmp_path / "t.jsonl"
    trace.write_text(GARBLED)
    result = runner.invoke(app, ["replay", str(trace)])
    assert result.exit_code == 2
    assert f"trace {trace}, line 2: not JSON" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--policy", "best"], "unknown name 'best'"),
        (["--device", "abacus"], "'abacus'"),
        (["--chunk-bytes", "33"], "multiple of 32"),
        (["--gpu-blocks", "3"], "--gpu-blocks"),
        (["--json", "/nowhere/figures.json"], "--json /nowhere/figures.json: there is no folder /nowhere"),
        (["--json", "/"], "--json /: that is a folder"),
    ],
)
def test_what_cannot_work_is_one_line_and_status_2(runner: CliRunner, arguments: list[str], reason: str) -> None:
    result = runner.invoke(app, ["replay", *arguments])
    assert result.exit_code == 2
    assert reason in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "arguments", [["--concurrency", "0"], ["--requests", "-1"], ["--chunk-bytes", "much"], ["--cpu-chunks", "0"]]
)
def test_a_wrong_option_is_a_usage_error(runner: CliRunner, arguments: list[str]) -> None:
    result = runner.invoke(app, ["replay", *arguments])
    assert result.exit_code == 2
    assert arguments[0] in result.stderr


def commands(group: typer.Typer) -> Iterator[tuple[str, Callable[..., None]]]:
    for command in group.registered_commands:
        assert command.callback is not None
        yield str(command.name), command.callback
    for inner in group.registered_groups:
        assert inner.typer_instance is not None
        yield from commands(inner.typer_instance)


def test_every_number_is_bounded_before_anything_is_made_of_it() -> None:
    """But for `events --after`, which the client of the events checks."""
    unbounded = set()
    for name, command in commands(app):
        for option, hint in get_type_hints(command, include_extras=True).items():
            kind, *described = get_args(hint) or (hint,)
            is_number = {int, float} & {kind, *get_args(kind)}
            if is_number and not any(each.max is not None or each.parser is not None for each in described):
                unbounded.add((name, option))
    assert unbounded == {("events", "after")}


@pytest.mark.parametrize(
    "arguments",
    [
        ["replay", "--requests", HUGE],
        ["replay", "--chunk-bytes", f"{HUGE}TB"],
        ["bench", "manager", "--cpu-chunks", HUGE],
        ["bench", "loop", "--requests", HUGE],
        ["bench", "copy", "--jobs", "99999999"],
        ["bench", "copy", "--slot-bytes", f"{HUGE}TB"],
        ["bench", "policy", "--capacities", HUGE],
        ["bench", "policy", "--capacities", "9" * 5000],
        ["bench", "serve", "--prompt-tokens", HUGE],
    ],
)
def test_a_number_beyond_every_machine_is_status_2_and_not_a_traceback(runner: CliRunner, arguments: list[str]) -> None:
    result = runner.invoke(app, arguments)
    assert (result.exit_code, type(result.exception)) == (2, SystemExit)
    assert arguments[-2] in result.stderr or "at most" in result.stderr


def test_large_numbers_whose_product_no_machine_has_are_one_line(runner: CliRunner) -> None:
    for arguments in (["--chunk-bytes", "1024TiB"], ["--gpu-blocks", "100000000"], ["--cpu-chunks", "100000000"]):
        result = runner.invoke(app, ["replay", *arguments, "--device", "host"])
        assert result.exit_code == 2
        assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("missing", ["rich", "typer"])
def test_without_the_extra_the_command_says_what_to_install(missing: str) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None; from aiokvoffload.cli.main import main; sys.exit(main())"
    result = python("-c", code)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == f"aiokvoffload: {missing} is missing: pip install 'aiokvoffload[cli]'\n"


def test_json_on_standard_output_is_nothing_but_json(forks: Forks) -> None:
    result = forks.run(COMMAND, "replay", "--requests", "5", "--device", "host", "--json", "-")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["requests"] == 5
    assert result.stderr == ""


def test_the_copy_benchmark_reports_both_directions(runner: CliRunner, tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    sizes = ["--fragment-bytes", "1KiB", "--slot-bytes", "4KiB", "--job-bytes", "8KiB", "--pool-bytes", "64KiB"]
    options = [*sizes, "--directions", "d2h,h2d", "--device", "host", "--repeat", "2", "--json", str(figures)]
    result = runner.invoke(app, ["bench", "copy", *options])
    assert result.exit_code == 0, result.output
    assert [each["ways"] for each in json.loads(figures.read_text())] == ["d2h", "h2d"]
    assert "d2h" in result.output


def test_a_benchmark_that_cannot_work_is_one_line_and_status_2(runner: CliRunner) -> None:
    for option in (["--slot-bytes", "10"], ["--slots", "odd"], ["--directions", "up"], ["--engines", "warp"]):
        result = runner.invoke(app, ["bench", "copy", *option, "--device", "host"])
        assert result.exit_code == 2
        assert result.stderr.count("\n") == 1


def test_ctrl_c_cancels_what_runs_waits_for_its_end_and_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    ended: list[str] = []

    async def work() -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append("cleanly")

    with pytest.raises(typer.Exit) as caught, clear_errors():
        run(work())
    assert (caught.value.exit_code, ended) == (130, ["cleanly"])
    assert capsys.readouterr().err == "aiokvoffload: interrupted\n"


def test_ctrl_c_while_modules_are_imported_is_one_line() -> None:
    interrupted_import = """
import os, signal, sys
from aiokvoffload.cli.main import main
class Finder:
    def find_spec(self, name, *_):
        if name == "torch":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
sys.argv[1:] = ["bench", "loop"]
main()
"""
    result = python("-c", interrupted_import)
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "aiokvoffload: interrupted\n")


def test_a_second_ctrl_c_does_not_wait(forks: Forks) -> None:
    never_ends = """
import asyncio, os, signal
from aiokvoffload.cli.shell import clear_errors, run
async def work():
    os.kill(os.getpid(), signal.SIGINT)
    try:
        await asyncio.Event().wait()
    finally:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.Event().wait()
with clear_errors():
    run(work())
"""
    result = forks.run(never_ends)
    assert (result.returncode, result.stderr) == (130, "aiokvoffload: interrupted\n")


def test_errors_from_several_requests_at_once_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    errors = ExceptionGroup("lanes", [ExceptionGroup("inner", [BrokenError("the device is gone")]), BrokenError("too")])
    with pytest.raises(typer.Exit) as caught, clear_errors():
        raise errors
    assert caught.value.exit_code == 2
    assert capsys.readouterr().err == "aiokvoffload: the device is gone\n"


def test_a_mistake_of_ours_keeps_its_traceback() -> None:
    with pytest.raises(ExceptionGroup), clear_errors():
        raise ExceptionGroup("lanes", [BrokenError("the device is gone"), KeyError("ours")])
