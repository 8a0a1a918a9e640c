"""Configuration is checked when it is made, and says what is wrong with which field."""

from pathlib import Path
from typing import Any

import pytest
import torch

from aiokvoffload.base import CanonicalKVCacheRef, CanonicalKVCaches, CanonicalKVCacheTensor, make_offload_key
from aiokvoffload.config import (
    MAX_NUMBER,
    MAX_PENDING_EVENTS,
    MAX_SECONDS,
    MAX_STAGING_BYTES,
    CopyConfig,
    CPUOffloadingConfig,
    GroupConfig,
)
from aiokvoffload.cpu.spec import CPUOffloadingSpec
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
        ({"cpu_bytes": 1 << 63}, f"CPUOffloadingConfig.cpu_bytes must be at most {MAX_NUMBER}, got {1 << 63}"),
        ({"close_timeout_s": float("inf")}, f"close_timeout_s must be at most {MAX_SECONDS}, got inf"),
        ({"close_timeout_s": 10**5000}, f"close_timeout_s must be at most {MAX_SECONDS}, got a number of 16610 bits"),
        ({"max_pending_events": 1 << 63}, f"max_pending_events must be at most {MAX_PENDING_EVENTS}, got {1 << 63}"),
        ({"max_run_keys": -(10**5000)}, "max_run_keys must be a whole number above 0, got a number of 16610 bits"),
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
        ({"span": 10**400}, f"GroupConfig.span must be at most {MAX_NUMBER}, got a number of 1329 bits"),
        ({"budget_weight": 0.0}, "budget_weight must be a number above 0"),
        ({"budget_weight": float("inf")}, f"GroupConfig.budget_weight must be at most {MAX_NUMBER}, got inf"),
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
        ({"staging_bytes": 1 << 70}, f"staging_bytes must be at most {MAX_STAGING_BYTES}, got {1 << 70}"),
        ({"programs": 0}, "programs must be a whole number above 0, got 0"),
        ({"turn_bytes": -1}, f"turn_bytes must be 0 or a whole number of at most {MAX_NUMBER}, got -1"),
        ({"turn_bytes": False}, "turn_bytes must be 0 or a whole number of at most .*, got False"),
        ({"turn_bytes": 1 << 63}, f"turn_bytes must be 0 or a whole number of at most {MAX_NUMBER}, got {1 << 63}"),
        ({"calibration_file": 5}, "calibration_file must be a path or None, got 5"),
        ({"calibration_file": ""}, "calibration_file must be a path or None, got ''"),
        ({"calibration_file": b"costs.json"}, "calibration_file must be a path or None, got b'costs.json'"),
        ({"calibration_file": "a\0b"}, "calibration_file must be a path or None, got"),
    ],
)
def test_a_wrong_field_of_the_copies_is_named_with_its_value(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        CopyConfig(**fields)


def test_staging_and_turns_can_be_left_out_and_costs_be_kept_anywhere() -> None:
    assert CopyConfig(staging_bytes=0, turn_bytes=0).staging_bytes == 0
    assert CopyConfig(calibration_file=Path("costs.json")).calibration_file == Path("costs.json")
    assert CopyConfig(calibration_file="costs.json").calibration_file == "costs.json"


async def test_a_service_opens_and_closes_with_the_largest_numbers() -> None:
    tensor = CanonicalKVCacheTensor(torch.zeros((4, 4096), dtype=torch.uint8), 4096)
    kv_caches = CanonicalKVCaches([tensor], [[CanonicalKVCacheRef(0, 4096)]])
    most = ("store_threshold", "store_tracker_keys", "max_run_keys", "max_run_fragments", "max_jobs_in_flight")
    config = CPUOffloadingConfig(
        cpu_bytes=1 << 16,
        device="host",
        groups=(GroupConfig(span=MAX_NUMBER, window_chunks=MAX_NUMBER, budget_weight=MAX_NUMBER),),
        copy=CopyConfig(turn_bytes=MAX_NUMBER, programs=MAX_NUMBER),
        close_timeout_s=MAX_SECONDS,
        event_block_timeout_s=MAX_SECONDS,
        max_waiting_transfers=MAX_NUMBER,
        max_event_metadata=MAX_NUMBER,
        **dict.fromkeys(most, MAX_NUMBER),  # type: ignore[arg-type]
    )
    async with CPUOffloadingSpec(config).open(kv_caches) as offload, offload.request("request") as request:
        key = make_offload_key(b"x" * 32, 0)
        await request.store([key], [0])
        assert request.lookup([key]) == 0  # it was not offered often enough
