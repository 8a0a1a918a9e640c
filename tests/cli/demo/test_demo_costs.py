import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import aiokvoffload as kv
from aiokvoffload.cli.demo.costs import ServeCosts, TierCosts, fit_tier, read_costs
from aiokvoffload.cli.demo.engine import Engine, EngineConfig, Hit, load_always
from aiokvoffload.errors import ArgumentError
from aiokvoffload.service import OffloadingService
from tests.cli.demo.tiny import BLOCK_TOKENS, PIECE_TOKENS, ask, cpu_config, paged, random_tokens

CPU, DISK = TierCosts(latency_s=0.002, token_s=1e-6), TierCosts(latency_s=0.050, token_s=1e-5)


def costs(**changed: object) -> ServeCosts:
    values = {
        "model": "random",
        "step_s": 0.025,
        "compute": ((256, 0.026), (1024, 0.032), (16_384, 0.6)),
        "tiers": {"cpu": CPU, "disk": DISK},
    }
    return ServeCosts(**{**values, **changed})  # type: ignore[arg-type]


def test_computing_takes_a_step_at_least_and_what_was_measured_between() -> None:
    found = costs()
    assert found.compute_s(0, 16) == found.compute_s(1000, 1016) == 0.025
    assert found.compute_s(0, 1024) == pytest.approx(0.032)
    assert found.compute_s(0, 8704) == pytest.approx((0.032 + 0.6) / 2)
    assert found.compute_s(1024, 16_384) == pytest.approx(0.6 - 0.032)
    assert found.compute_s(0, 2 * 16_384 - 1024) == pytest.approx(2 * 0.6 - 0.032)


def test_loading_is_chosen_where_it_is_predicted_to_be_sooner() -> None:
    worth = costs().decide(["cpu"])
    assert not worth(Hit(prompt_tokens=272, gpu_tokens=0, tier_tokens=256))
    assert worth(Hit(prompt_tokens=1040, gpu_tokens=0, tier_tokens=1024))
    assert worth(Hit(prompt_tokens=16_384, gpu_tokens=0, tier_tokens=16_368))


def test_what_gpu_memory_has_is_no_reason_to_load() -> None:
    worth = costs().decide(["cpu"])
    assert not worth(Hit(prompt_tokens=16_384, gpu_tokens=16_352, tier_tokens=16_368))
    assert worth(Hit(prompt_tokens=16_384, gpu_tokens=1024, tier_tokens=16_368))


def test_the_slowest_tier_counts_and_one_that_was_not_measured_is_never_loaded_from() -> None:
    hit = Hit(prompt_tokens=1536, gpu_tokens=0, tier_tokens=1520)
    assert costs().decide(["cpu"])(hit)
    assert not costs().decide(["cpu", "disk"])(hit)
    assert not costs(tiers={"cpu": CPU}).decide(["cpu", "disk"])(Hit(16_384, 0, 16_368))


def test_the_break_even_is_the_shortest_prompt_that_is_loaded_sooner() -> None:
    found = costs()
    tokens = found.break_even_tokens("cpu")
    assert tokens is not None
    assert CPU.load_s(tokens) + 0.025 < found.compute_s(0, tokens)
    assert CPU.load_s(tokens - 1) + 0.025 >= found.compute_s(0, tokens - 1)
    assert costs(tiers={"tape": TierCosts(latency_s=9.0, token_s=0.0)}).break_even_tokens("tape") is None


@pytest.mark.parametrize(
    ("points", "latency_s", "token_s"),
    [
        ([(1000, 0.003), (10_000, 0.012), (100_000, 0.102)], 0.002, 1e-6),
        ([(1000, 0.003)], 0.0, 3e-6),
        ([(1000, 0.001), (10_000, 0.02)], 0.0, 201 / 101e6),
        ([(48, 2.04e-3), (240, 1.87e-3), (1008, 1.92e-3)], 1.943e-3, 0.0),
        ([(64, -0.001), (1024, 0.004)], 0.0, 3.83e-6),
        ([(64, -0.001), (1024, -0.002)], 0.0, 0.0),
        ([(64, 0.001), (64, 0.003)], 0.0, 31.25e-6),
    ],
    ids=["line", "one point", "begins below 0", "falls", "noise of a short one", "nothing but noise", "one length"],
)
def test_the_nearest_line_is_fitted_to_loads_and_neither_part_is_negative(
    points: list[tuple[int, float]], latency_s: float, token_s: float
) -> None:
    found = fit_tier(points)
    assert found.latency_s == pytest.approx(latency_s, rel=1e-3, abs=1e-9)
    assert found.token_s == pytest.approx(token_s, rel=1e-3, abs=1e-12)


@given(st.lists(st.tuples(st.integers(1, 10**5), st.floats(-0.01, 1.0)), min_size=1, max_size=6))
def test_no_other_line_that_is_not_negative_is_nearer(points: list[tuple[int, float]]) -> None:
    def distance(latency_s: float, token_s: float) -> float:
        return sum((latency_s + tokens * token_s - seconds) ** 2 for tokens, seconds in points)

    found = fit_tier(points)
    nearest = distance(found.latency_s, found.token_s)
    for latency_s in (0.0, found.latency_s * 0.9, found.latency_s * 1.1, found.latency_s + 1e-3):
        for token_s in (0.0, found.token_s * 0.9, found.token_s * 1.1, found.token_s + 1e-7):
            assert distance(latency_s, token_s) >= nearest - 1e-9


def test_costs_come_back_from_the_benchmarks_json(tmp_path: Path) -> None:
    file = tmp_path / "bench.json"
    file.write_text(json.dumps({"model": "random", "costs": costs().to_dict()}))
    assert read_costs(file) == costs()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", " is not JSON: Expecting value"),
        ("[]", " has no costs; give the file that `aiokvoffload bench serve --json FILE` wrote"),
        ('{"tokens_identical": true}', " has no costs; give the file"),
        ('{"costs": {"model": "random"}}', ": costs must be those of .*, they have no 'step_s'"),
        ('{"costs": {"model": "m", "step_s": 1, "compute": 3}}', ": costs must be those of .*: 'int' object"),
        ('{"costs": {"model": "m", "step_s": -1, "compute": [[1, 1]], "tiers": {}}}', ": seconds must be .*, got -1"),
    ],
)
def test_a_file_without_costs_is_refused_and_what_is_wrong_is_said(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "bench.json"
    file.write_text(text)
    with pytest.raises(ArgumentError, match=f"^--costs {file}{message}"):
        read_costs(file)


def test_a_file_of_costs_that_is_not_there_is_said_to_be_missing(tmp_path: Path) -> None:
    file = tmp_path / "nowhere.json"
    with pytest.raises(ArgumentError, match=f"^--costs {file} cannot be read: No such file or directory; give the"):
        read_costs(file)


def test_impossible_costs_are_refused() -> None:
    with pytest.raises(ArgumentError, match="ascending order, got \\[16, 8\\]"):
        costs(compute=((16, 0.1), (8, 0.2)))
    with pytest.raises(ArgumentError, match="at least 0, got -1"):
        costs(step_s=-1.0)
    with pytest.raises(ArgumentError, match="one at least"):
        fit_tier([])


@pytest.mark.parametrize(("load_s", "loads"), [(0.0, True), (1e9, False)])
async def test_an_engine_computes_what_costs_more_to_load(*, load_s: float, loads: bool) -> None:
    """The same answer, from a tier or computed; the measured model says which."""
    measured = costs(step_s=0.0, tiers={"cpu": TierCosts(latency_s=load_s, token_s=0.0)})
    config = EngineConfig(piece_tokens=PIECE_TOKENS, max_rows=4, exact=False, worth_loading=measured.decide(["cpu"]))
    model, prompt = await paged(24, exact=False), random_tokens("costs", 8 * BLOCK_TOKENS)
    service: OffloadingService = kv.CPUOffloadingSpec(cpu_config()).open(model.kv_caches)
    async with service as offload, Engine(model, config, offload=offload) as engine:
        first, _ = await ask(engine, prompt)
        engine.pages.forget_idle()
        second, figures = await ask(engine, prompt)
    assert second == first
    assert bool(figures.tier_tokens) is loads


def test_without_costs_every_hit_is_loaded() -> None:
    assert load_always(Hit(32, 0, 16))
    assert EngineConfig().worth_loading is load_always
