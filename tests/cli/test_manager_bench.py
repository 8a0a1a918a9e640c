"""The manager alone, on a small trace."""

import json
import time

import pytest

from aiokvoffload.cli.manager_bench import manager_benchmark, manager_json, manager_table
from aiokvoffload.cli.trace import TraceRequest
from aiokvoffload.errors import ConfigError

TRACE = [TraceRequest(1, (1, 2, 3)), TraceRequest(2, (1, 2, 4)), TraceRequest(3, ())]


@pytest.mark.parametrize("policy", ["lru", "arc"])
def test_the_hit_ratio_is_that_of_the_leading_blocks(policy: str) -> None:
    figures = manager_benchmark(TRACE, policy=policy, cpu_chunks=8)
    assert (figures.requests, figures.blocks, figures.hit_ratio) == (3, 6, 2 / 6)
    assert figures.us_per_block > 0
    assert json.loads(manager_json([figures]))[0]["policy"] == policy
    assert manager_table([figures, figures]).row_count == 2


def test_a_pause_before_each_call_is_told_and_not_counted() -> None:
    began_s = time.perf_counter()
    figures = manager_benchmark(TRACE, policy="lru", cpu_chunks=8, pause_us=20_000)
    assert time.perf_counter() - began_s >= 18 * 0.02  # calls of the three requests
    assert 0 < figures.us_per_block < 20_000  # three calls a block: counted, it would be 60,000
    assert figures.pause_us == 20_000
    assert "20,000 µs of sleep before each call" in str(manager_table([figures]).title)


def test_an_unknown_policy_is_named() -> None:
    with pytest.raises(ConfigError, match="unknown name 'belady'"):
        manager_benchmark(TRACE, policy="belady", cpu_chunks=8)
