"""Configuration is checked when it is made, and says what is wrong with which field."""

from typing import Any

import pytest

from aiokvoffload.config import CopyConfig, CPUOffloadingConfig, GroupConfig
from aiokvoffload.errors import ConfigError


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"cpu_bytes": 0}, "cpu_bytes must be a whole number above 0, got 0"),
        ({"cpu_bytes": "1GiB"}, "cpu_bytes must be a whole number above 0, got '1GiB'"),
        ({"cpu_bytes": 1e9}, "cpu_bytes must be a whole number"),
        ({"store_threshold": True}, "store_threshold must be a whole number"),
        ({"close_timeout_s": float("nan")}, "close_timeout_s must be a number above 0, got nan"),
        ({"max_run_keys": -1}, "max_run_keys"),
        ({"policy": 5}, "policy must be the name of a cache policy, got 5"),
        ({"device": "tpu"}, "device must be one of auto, cuda, host, got 'tpu'"),
        ({"groups": ()}, "groups must be GroupConfig records"),
        ({"groups": ("full",)}, "groups must be GroupConfig records"),
        ({"groups": GroupConfig()}, "groups must be GroupConfig records, .* got GroupConfig"),
        ({"groups": 5}, "groups must be GroupConfig records, .* got 5"),
        ({"copy": "staged"}, "copy must be a CopyConfig, got 'staged'"),
        ({"mode": "awaited"}, "mode must be Mode.AWAITED or Mode.STEPPED, got 'awaited'"),
    ],
)
def test_a_wrong_field_is_named_with_its_value(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        CPUOffloadingConfig(**{"cpu_bytes": 4096, **fields})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"blocks_per_chunk": 1.5}, "blocks_per_chunk must be a whole number above 0, got 1.5"),
        ({"span": 0}, "span"),
        ({"window_chunks": 0}, "window_chunks"),
        ({"budget_weight": 0.0}, "budget_weight must be a number above 0"),
    ],
)
def test_a_wrong_field_of_a_group_is_named_too(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        GroupConfig(**fields)


def test_a_hit_needs_the_prefix_or_the_window_at_its_end() -> None:
    assert list(GroupConfig(span=2).chunks_at(6)) == [0, 1, 2]
    assert list(GroupConfig(span=2, window_chunks=2).chunks_at(6)) == [1, 2]
    assert list(GroupConfig(window_chunks=5).chunks_at(2)) == [0, 1]
    assert list(GroupConfig().chunks_at(0)) == []


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"engine": "warp"}, "engine must be one of auto, staged, batched, direct, torch, got 'warp'"),
        ({"staging_bytes": 1 << 20}, "staging_bytes must be 0 or at least 4194304, got 1048576"),
        ({"staging_bytes": "1GiB"}, "staging_bytes must be a whole number"),
        ({"programs": 0}, "programs must be a whole number above 0, got 0"),
    ],
)
def test_a_wrong_field_of_the_copies_is_named_with_its_value(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        CopyConfig(**fields)


def test_staging_can_be_left_out() -> None:
    assert CopyConfig(staging_bytes=0).staging_bytes == 0
