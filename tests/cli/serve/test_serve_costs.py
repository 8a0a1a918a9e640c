"""What `--costs` makes of a hit, and which files it refuses."""

import json
from pathlib import Path

import pytest

from aiokvoffload.cli.demo.costs import ServeCosts, TierCosts
from aiokvoffload.cli.demo.engine import Hit, load_always
from aiokvoffload.cli.serve.run import ServeOptions
from aiokvoffload.errors import ArgumentError

LONG = Hit(prompt_tokens=1024, gpu_tokens=0, tier_tokens=1008)


def costs_file(folder: Path) -> Path:
    tiers = {"cpu": TierCosts(latency_s=0.0, token_s=1e-6)}
    costs = ServeCosts(model="random", step_s=0.01, compute=((1024, 0.1),), tiers=tiers)
    file = folder / "bench.json"
    file.write_text(json.dumps({"costs": costs.to_dict()}))
    return file


def test_without_costs_every_hit_is_loaded() -> None:
    assert ServeOptions().decision() is load_always


def test_costs_decide(tmp_path: Path) -> None:
    decide = ServeOptions(model="random", costs=costs_file(tmp_path)).decision()
    assert decide(LONG)
    assert not decide(Hit(prompt_tokens=32, gpu_tokens=0, tier_tokens=16))


@pytest.mark.parametrize("options", [{"model": "random-1b"}, {"model": "random", "disk_dir": Path("d")}])
def test_costs_of_another_model_or_without_a_tier_are_refused(tmp_path: Path, options: dict[str, object]) -> None:
    with pytest.raises(ArgumentError, match=r"are of random with cpu: measure random.* by `aiokvoffload bench serve`"):
        ServeOptions(costs=costs_file(tmp_path), **options).decision()  # type: ignore[arg-type]
