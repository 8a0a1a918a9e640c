import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from aiokvoffload.cli.app import app
from aiokvoffload.cli.serve_bench.options import whole_blocks
from tests.forked import COMMAND, Forks, without

BENCH_SERVE = ["bench", "serve", "--device", "host", "--model", "random", "--quick"]


def test_every_tier_and_share_of_hits_is_measured_in_one_run(tmp_path: Path, forks: Forks) -> None:
    """In a process of its own, since it sets the process up."""
    lengths = ["--prompt-tokens", "64,128", "--piece-tokens", "64", "--disk-dir", str(tmp_path)]
    found_by_torch = [] if torch.cuda.is_available() else ["--device", "auto"]
    result = forks.run(COMMAND, *BENCH_SERVE, *lengths, *found_by_torch, "--json", "-")
    assert (result.returncode, result.stderr) == (0, "")
    found = json.loads(result.stdout)
    assert found["device"] == "host"
    hits = [(hit["tier"], hit["prompt_tokens"], hit["hit_percent"], hit["loaded_tokens"]) for hit in found["hits"]]
    assert hits == [
        *[("none", 64, 0, 0), ("cpu", 64, 50, 32), ("cpu", 64, 80, 48), ("cpu", 64, 100, 48)],
        *[("none", 128, 0, 0), ("cpu", 128, 50, 64), ("cpu", 128, 80, 96), ("cpu", 128, 100, 112)],
        *[("disk", 64, 50, 32), ("disk", 64, 80, 48), ("disk", 64, 100, 48)],
        *[("disk", 128, 50, 64), ("disk", 128, 80, 96), ("disk", 128, 100, 112)],
    ]
    assert [each["prompt_tokens"] for each in found["lengths"]] == [64, 128]
    assert all(each[key] > 0 for each in found["lengths"] for key in ("plain_ms", "engine_ms", "last_ms"))
    assert set(found["ceiling_gbps"]) == {"d2h", "h2d", "both"}
    assert set(found["costs"]["tiers"]) == {"cpu", "disk"}
    assert found["decode"]["alone_tokens_per_s"] > 0
    assert found["decode"]["store_gbps"] > 0
    assert found["storing"]["with_tokens_per_s"] > 0
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--prompt-tokens", "1k"], "--prompt-tokens must be whole numbers in [1, 100000000], got '1k'"),
        (["--prompt-tokens", "40"], "prompt_tokens must be multiples of a block's 16, two at least, got 40"),
        (
            ["--json", "no/such/folder/x"],
            "--json no/such/folder/x: there is no folder no/such/folder",
        ),
    ],
)
def test_what_cannot_be_measured_is_said_before_anything_is(options: list[str], message: str) -> None:
    result = CliRunner().invoke(app, [*BENCH_SERVE, *options])
    assert result.exit_code == 2
    assert result.stderr.startswith(f"aiokvoffload: {message}")
    assert result.stderr.count("\n") == 1


def test_a_model_that_is_not_there_is_one_line_and_status_2(forks: Forks) -> None:
    result = forks.run(COMMAND, *BENCH_SERVE, "--model", "huge")
    expected = "aiokvoffload: model must be one of smollm2, random, random-1b, random-8b, got 'huge'\n"
    assert (result.returncode, result.stderr) == (2, expected)


def test_without_the_extra_it_says_what_to_install(forks: Forks) -> None:
    result = forks.run(without("transformers") + COMMAND, *BENCH_SERVE)
    assert result.returncode == 2
    assert result.stderr == "aiokvoffload: transformers is missing: pip install 'aiokvoffload[demo]'\n"


def test_a_server_is_not_needed(tmp_path: Path) -> None:
    program = f"import sys\n{without('starlette', 'uvicorn', 'gguf')}{COMMAND}"
    options = ["--prompt-tokens", "32", "--decode-rows", "0", "--storing-prompts", "0"]
    command = [sys.executable, "-c", program, *BENCH_SERVE, *options, "--json", str(tmp_path / "bench.json")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    assert (result.returncode, result.stderr) == (0, "")
    assert "Expected of an 8B model on one H200" in result.stdout
    assert json.loads((tmp_path / "bench.json").read_text())["decode"] is None


@pytest.mark.parametrize(
    ("lengths", "block", "shown"),
    [
        ("64,256,1024", 16, "64,256,1024"),
        ("64,256,1024", 17, "68,255,1020"),
        ("64,256", 500, "1000"),
        ("256", 17, "255"),
    ],
)
def test_default_lengths_fit_any_block(lengths: str, block: int, shown: str) -> None:
    assert whole_blocks(lengths, block) == shown
