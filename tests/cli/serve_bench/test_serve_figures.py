"""Figures, what is expected of them, and how they are shown; nothing is measured."""

import importlib.util
import json
from pathlib import Path

import pytest
from rich.console import Console

from aiokvoffload.cli.demo.costs import ServeCosts, TierCosts, read_costs
from aiokvoffload.cli.serve_bench.figures import (
    DecodeFigure,
    HitFigure,
    LengthFigure,
    ServeBenchmark,
    StoringFigure,
)
from aiokvoffload.cli.serve_bench.measure import fit_costs
from aiokvoffload.cli.serve_bench.options import ServeBenchOptions
from aiokvoffload.cli.serve_bench.report import plot_serve, serve_table
from aiokvoffload.errors import ArgumentError

BLOCK_BYTES = 2 << 20


def length(tokens: int, engine_ms: float, *, plain_ms: float = 100.0) -> LengthFigure:
    return LengthFigure(
        prompt_tokens=tokens, plain_ms=plain_ms, plain_last_ms=30.0, engine_ms=engine_ms, last_ms=20.0, measurements=3
    )


def hit(tokens: int, ttft_ms: float, *, tier: str = "cpu", percent: int = 100) -> HitFigure:
    loaded = tokens * percent // 100
    return HitFigure(
        tier=tier,
        prompt_tokens=tokens,
        hit_percent=percent,
        loaded_tokens=loaded,
        loaded_bytes=loaded // 16 * BLOCK_BYTES,
        ttft_ms=ttft_ms,
        measurements=3,
    )


def benchmark(**changed: object) -> ServeBenchmark:
    lengths = (length(1024, 110.0), length(16_384, 700.0, plain_ms=600.0))
    hits = (hit(1024, 23.0), hit(16_384, 65.0), hit(1024, 80.0, tier="none", percent=0), hit(1024, 90.0, tier="disk"))
    values = {
        "model": "random-8b",
        "revision": "1",
        "device": "cuda",
        "seconds": 100.0,
        "block_tokens": 16,
        "block_bytes": BLOCK_BYTES,
        "piece_tokens": 4096,
        "ceiling_gbps": {"d2h": 55.0, "h2d": 50.0, "both": 91.0},
        "lengths": lengths,
        "hits": hits,
        "costs": fit_costs("random-8b", list(lengths), list(hits)),
        "decode": DecodeFigure(
            rows=64,
            context_tokens=512,
            alone_tokens_per_s=5000.0,
            beside_tokens_per_s=4750.0,
            drop_percent=5.0,
            drops_percent=(4.0, 5.0, 9.0),
            load_gbps=45.0,
            store_gbps=44.0,
        ),
        "storing": StoringFigure(
            prompts=12, prompt_tokens=2048, without_tokens_per_s=100.0, with_tokens_per_s=97.0, cost_percent=3.0
        ),
    }
    return ServeBenchmark(**{**values, **changed})  # type: ignore[arg-type]


def test_what_is_expected_is_said_as_met_or_not() -> None:
    bars = benchmark().bars
    # 16,384 tokens are 2 GiB, which take 42.9 ms at 50 GB/s.
    assert bars[0].value == 65.0
    assert bars[0].limit == pytest.approx(1.15 * 42.949673 + 20.0 + 5.0)
    assert [bar.met for bar in bars] == [True, True, True, True, False]
    assert [bar.limit for bar in bars[1:]] == [1.3, 1.3, 8.0, 2.0]


def test_a_short_run_expects_something_of_its_longest_prompt() -> None:
    short = benchmark(lengths=(length(1024, 110.0),), hits=(hit(1024, 23.0),), decode=None, storing=None)
    assert short.bars[0].what == "TTFT, 1,024 tokens, all in CPU memory"
    assert len(short.bars) == 2


def test_costs_are_what_the_load_adds_to_the_last_step() -> None:
    costs = benchmark().costs
    assert costs.compute == ((1024, 0.110), (16_384, 0.700))
    assert costs.step_s == 0.020
    assert costs.tiers["cpu"].load_s(1024) == pytest.approx(0.003)
    assert costs.tiers["cpu"].load_s(16_384) == pytest.approx(0.045)
    assert list(costs.tiers) == ["cpu", "disk"]


def test_a_load_that_is_lost_in_the_noise_costs_nothing_and_never_less() -> None:
    costs = fit_costs("random", [length(64, 12.0)], [hit(64, 8.0)])
    assert costs.tiers["cpu"] == TierCosts(latency_s=0.0, token_s=0.0)


def test_a_slow_short_load_says_nothing_of_long_ones_that_were_quick() -> None:
    """The last step alone takes 20 ms; a line through the slow load alone would have 1,008 tokens take 32 ms."""
    lengths = [length(48, 12.0), length(240, 12.0), length(1008, 40.0)]
    costs = fit_costs("random", lengths, [hit(48, 21.52), hit(240, 20.8), hit(1008, 20.57)]).tiers["cpu"]
    assert costs.token_s == 0.0
    assert costs.load_s(1008) == pytest.approx(0.00096, rel=0.01)


def test_short_loads_that_are_lost_in_the_noise_do_not_make_long_ones_free() -> None:
    lengths = [length(64, 12.0), length(256, 12.0), length(1024, 40.0), length(4096, 160.0)]
    hits = [hit(64, 18.0), hit(256, 19.5), hit(1024, 23.5), hit(4096, 34.0)]  # the last step alone takes 20
    costs = fit_costs("random", lengths, hits).tiers["cpu"]
    assert costs.load_s(1024) == pytest.approx(0.0035, rel=0.1)
    assert costs.load_s(4096) == pytest.approx(0.014, rel=0.1)


def test_a_longer_prompt_never_takes_shorter_whatever_the_noise_says() -> None:
    lengths = [length(64, 30.0), length(256, 20.0), length(1024, 40.0)]
    assert fit_costs("random", lengths, []).compute == ((64, 0.03), (256, 0.03), (1024, 0.04))


def test_the_json_has_everything_and_serve_reads_its_costs(tmp_path: Path) -> None:
    file = tmp_path / "bench.json"
    file.write_text(benchmark().to_json())
    assert read_costs(file) == benchmark().costs
    data = json.loads(file.read_text())
    assert set(data["break_even_tokens"]) == {"cpu", "disk"}
    assert data["lengths"][1]["plain_ratio"] == pytest.approx(7 / 6)
    assert data["hits"][1]["speedup"] == pytest.approx(700 / 65)
    assert [bar["met"] for bar in data["bars"]] == [True, True, True, True, False]


def test_the_tables_say_all_of_it() -> None:
    console = Console(width=140, record=True)
    console.print(serve_table(benchmark()))
    text = console.export_text()
    for part in ("plain", "loading from cpu is sooner from", "decoding 64 rows alone", "not met", "2,147,483,648"):
        assert part in text
    never = ServeCosts(
        model="m", step_s=1.0, compute=((64, 1.0),), tiers={"cpu": TierCosts(latency_s=1.0, token_s=0.0)}
    )
    console.print(serve_table(benchmark(costs=never, decode=None, storing=None)))
    assert "not up to 64 tokens" in console.export_text()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"prompt_tokens": ()}, "distinct lengths in ascending order"),
        ({"prompt_tokens": (64, 32)}, "ascending order, got"),
        ({"prompt_tokens": (64, 100)}, "multiples of a block's 16, two at least, got 100"),
        ({"prompt_tokens": (16,)}, "two at least, got 16"),
        ({"piece_tokens": 100}, "piece_tokens must be a multiple of a block's 16, got 100"),
    ],
)
def test_options_that_make_no_sense_are_refused(changed: dict[str, object], message: str) -> None:
    values = {"model": "random", "device": "host", "prompt_tokens": (64, 256)}
    with pytest.raises(ArgumentError, match=message):
        ServeBenchOptions(**{**values, **changed})  # type: ignore[arg-type]


def test_a_disk_is_measured_up_to_a_length() -> None:
    options = ServeBenchOptions(model="random", device="host", prompt_tokens=(64, 256), disk_max_tokens=100)
    assert options.disk_tokens == ()
    with_disk = ServeBenchOptions(
        model="random", device="host", prompt_tokens=(64, 256), disk_max_tokens=100, disk_dir=Path()
    )
    assert with_disk.disk_tokens == (64,)


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is not None, reason="matplotlib is there")
def test_a_picture_needs_matplotlib(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="matplotlib"):
        plot_serve(benchmark(), tmp_path / "serve.png")


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="needs matplotlib")
def test_the_picture_is_a_png(tmp_path: Path) -> None:
    plot_serve(benchmark(), tmp_path / "serve.png")
    assert (tmp_path / "serve.png").read_bytes().startswith(b"\x89PNG")
