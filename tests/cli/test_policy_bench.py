"""Policies over traces, small ones."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from aiokvoffload.cli.app import app
from aiokvoffload.cli.policy_bench import PolicyFigures, metadata_bytes_per_key, policy_benchmark, policy_table
from aiokvoffload.cli.traces import SAMPLE_TRACE
from aiokvoffload.errors import ArgumentError, ConfigError
from aiokvoffload.registry import BUILTIN


def test_every_policy_stays_below_perfect_foresight() -> None:
    figures = policy_benchmark(["zipf"], policies=tuple(BUILTIN["policies"]), capacities=[200], blocks=6_000)
    assert len(figures) == len(BUILTIN["policies"])
    for each in figures:
        assert 0 < each.hit_ratio < each.bound < 1
        assert each.warm_hit_ratio is not None
        assert each.us_per_block > 0
        assert (each.refused_ratio > 0) == (each.policy in {"gap", "adaptive"})


def test_seeds_of_a_file_change_names_only_and_those_of_a_workload_the_requests() -> None:
    once, twice = (
        policy_benchmark([str(SAMPLE_TRACE), "chat"], policies=["lru"], capacities=[200], seeds=seeds, blocks=4_000)
        for seeds in (1, 2)
    )
    assert once[0].hit_ratio == twice[0].hit_ratio
    assert once[1].hit_ratio != twice[1].hit_ratio
    assert once[0].trace == SAMPLE_TRACE.name


@pytest.mark.parametrize("policy", BUILTIN["policies"])
def test_a_resident_key_takes_at_most_three_hundred_bytes(policy: str) -> None:
    """I11: a dictionary that has just grown is half empty, so the size is chosen where it is fuller."""
    assert metadata_bytes_per_key(policy, 10_000) <= 300


def test_what_cannot_be_is_named() -> None:
    with pytest.raises(ArgumentError, match="trace 'nights': no such file, nor one of the workloads uniform, zipf"):
        policy_benchmark(["nights"], policies=["lru"], capacities=[10])
    with pytest.raises(ArgumentError, match="trace 'nights'"):  # before the policies, and so before the first trace
        policy_benchmark(["zipf", "nights"], policies=["belady"], capacities=[10])
    with pytest.raises(ConfigError, match="unknown name 'belady'"):
        policy_benchmark(["zipf"], policies=["belady"], capacities=[10])


def test_the_command_writes_json_and_says_what_is_wrong() -> None:
    runner = CliRunner()
    arguments = ["bench", "policy", "zipf", "--policies", "lru,gap", "--capacities", "50", "--blocks", "1000"]
    result = runner.invoke(app, [*arguments, "--json", "-"])
    assert [each["policy"] for each in json.loads(result.stdout)] == ["lru", "gap"]
    result = runner.invoke(app, ["bench", "policy", "zipf", "--policies", ""])
    assert (result.exit_code, result.stderr) == (2, "aiokvoffload: --policies must be names, got ''\n")
    result = runner.invoke(app, [*arguments[:-4], "--capacities", "many"])
    assert (result.exit_code, result.stderr) == (
        2,
        "aiokvoffload: --capacities must be whole numbers in [1, 100000000], got 'many'\n",
    )


def test_no_ratio_is_cut_in_eighty_columns() -> None:
    figures = PolicyFigures(
        trace="conversation_trace.jsonl",
        policy="adaptive",
        capacity=1_000_000,
        requests=12_031,
        blocks=288_500,
        hit_ratio=0.1234,
        warm_hit_ratio=0.2345,
        bound=0.3456,
        refused_ratio=0.456,
        us_per_block=12.34,
        full_us_per_block=23.45,
        metadata_bytes_per_key=345,
    )
    console = Console(width=80)
    with console.capture() as shown:
        console.print(policy_table([figures]))
    for value in ("0.1234", "0.2345", "0.3456", "45.6%", "12.34", "23.45", "345", "1,000,000"):
        assert value in shown.get()


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="needs matplotlib")
def test_the_command_draws(tmp_path: Path) -> None:
    """In a process of its own: matplotlib keeps the fonts open that it has found."""
    options = ["--policies", "lru", "--capacities", "50,100", "--blocks", "1000", "--plot", str(tmp_path / "plot.png")]
    command = [sys.executable, "-m", "aiokvoffload", "bench", "policy", "zipf", "chat", *options]
    subprocess.run(command, check=True, capture_output=True)  # noqa: S603
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is not None, reason="matplotlib is there")
def test_a_plot_without_matplotlib_says_what_to_install(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["bench", "policy", "zipf", "--plot", str(tmp_path / "plot.png")])
    assert (result.exit_code, result.stderr) == (
        2,
        "aiokvoffload: --plot needs matplotlib: pip install 'aiokvoffload[plot]'\n",
    )
