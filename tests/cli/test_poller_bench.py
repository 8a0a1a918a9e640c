"""The poller's benchmark, small, on the host device."""

import io
import json

import pytest
from rich.console import Console, Group

from aiokvoffload.cli.poller_bench import poller_benchmark
from aiokvoffload.cli.poller_figures import poller_tables
from aiokvoffload.errors import ArgumentError, ConfigError


async def test_lags_and_shares_come_out_for_every_phase() -> None:
    benchmark = await poller_benchmark(
        transfer_bytes=(4096, 65536), seconds=0.05, device="host", long_bytes=1 << 20, fragments=256
    )
    record = json.loads(benchmark.to_json())
    assert (record["device"], record["clock_error_us"]) == ("host", 0.0)
    assert [(lag["direction"], lag["transfer_bytes"]) for lag in record["lags"]] == [
        ("store", 4096),
        ("load", 4096),
        ("store", 65536),
        ("load", 65536),
    ]
    for lag in (*record["lags"], record["loaded"]["lag"]):
        assert lag["transfers"] > 0
        assert 0 < lag["lag_us"]["p50"] <= lag["lag_us"]["p99"] <= lag["lag_us"]["max"]
    idle, *busy = record["shares"]
    assert (idle["transfers_per_s"], idle["polling_share"]) == (0.0, 0.0)
    for share in busy:
        assert share["transfers_per_s"] > 0
        assert share["polling_share"] > 0
    assert record["loaded"]["submit_us"]["max"] > 0


async def test_the_tables_show_every_phase() -> None:
    benchmark = await poller_benchmark(transfer_bytes=(4096,), seconds=0.02, device="host", long_bytes=4096)
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(Group(*poller_tables(benchmark)))
    text = console.export_text()
    for row in ("store", "load", "nothing in flight", "stream of 2 MiB loads", "long, both ways"):
        assert row in text


async def test_what_cannot_be_measured_is_refused() -> None:
    with pytest.raises(ArgumentError, match="above 0"):
        await poller_benchmark(transfer_bytes=(0,), device="host")
    with pytest.raises(ConfigError, match="device"):
        await poller_benchmark(device="tpu")


@pytest.mark.gpu
async def test_the_benchmark_runs_on_cuda() -> None:
    benchmark = await poller_benchmark(transfer_bytes=(2 << 20,), seconds=0.1, device="cuda", long_bytes=16 << 20)
    assert 0.0 < benchmark.clock_error_us < 5_000  # beside other tests; alone some 10
    assert benchmark.lags[0].lag_us.p50 < 5_000
