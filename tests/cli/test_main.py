import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from aiokvoffload.cli.app import app

GARBLED = '{"hash_ids": [0]}\n{"hash_ids": [0,\n'


@pytest.fixture
def runner() -> CliRunner:
    return CliRunner()


def python(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)  # noqa: S603


def test_help_names_the_commands_and_their_options(runner: CliRunner) -> None:
    assert "replay" in runner.invoke(app, ["--help"]).output
    shown = runner.invoke(app, ["replay", "--help"], env={"COLUMNS": "200", "NO_COLOR": "1"}).output
    for option in ("requests", "policy", "gpu-blocks", "cpu-chunks", "chunk-bytes", "device", "concurrency", "verify"):
        assert f"--{option}" in shown


def test_the_version_is_shown(runner: CliRunner) -> None:
    result = runner.invoke(app, ["--version"])
    assert result.exit_code == 0
    assert result.output.strip()


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
        (["--json", "/nowhere/figures.json", "--requests", "1"], "/nowhere/figures.json"),
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


@pytest.mark.parametrize("missing", ["rich", "typer"])
def test_without_the_extra_the_command_says_what_to_install(missing: str) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None; from aiokvoffload.cli.main import main; sys.exit(main())"
    result = python("-c", code)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == f"aiokvoffload: {missing} is missing: pip install 'aiokvoffload[cli]'\n"


def test_json_on_standard_output_is_nothing_but_json() -> None:
    result = python("-m", "aiokvoffload.cli.main", "replay", "--requests", "5", "--device", "host", "--json", "-")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["requests"] == 5
    assert result.stderr == ""


def test_ctrl_c_ends_cleanly() -> None:
    """The signal comes once the replay runs: two processes wide open for it to matter."""
    command = [sys.executable, "-m", "aiokvoffload.cli.main", "replay", "--device", "host", "--concurrency", "1"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603
        os.kill(process.pid, signal.SIGINT)
        _, stderr = process.communicate()
    assert process.returncode in {130, -signal.SIGINT}
    assert "Traceback" not in stderr
