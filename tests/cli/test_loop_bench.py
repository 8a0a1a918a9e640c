"""The loop benchmark, small, on the host device."""

import json

from aiokvoffload.cli.loop_bench import loop_benchmark, loop_table


async def test_every_phase_moves_every_key_and_has_figures() -> None:
    result = await loop_benchmark(requests=4, keys_per_request=200, device="host")
    assert [(phase.name, phase.keys) for phase in result.phases] == [("store", 800), ("load", 800), ("load again", 800)]
    figures = json.loads(result.to_json())
    assert set(figures["phases"][0]["loop_blocked_us"]) == {"p50", "p99", "max"}
    assert loop_table(result).row_count == 3
