import io
import json

import pytest
from rich.console import Console

from aiokvoffload.cli.bench import copy_benchmark, copy_table
from aiokvoffload.errors import ArgumentError, ConfigError


def test_the_copy_benchmark_measures_both_ways_against_contiguous_copies() -> None:
    benchmark = copy_benchmark(chunks=8, chunk_bytes=64 << 10, layers=4, device="host", repeat=3)
    record = json.loads(benchmark.to_json())
    assert (record["device"], record["chunks"], record["layers"], record["pinned"]) == ("host", 8, 4, True)
    for direction in ("store", "load"):
        figures = record[direction]
        assert 0 < figures["copy_s"] <= figures["wall_s"]
        assert figures["gigabytes_per_s"] == pytest.approx(8 * 65536 / figures["copy_s"] / 1e9)
        assert figures["ratio"] == pytest.approx(figures["contiguous_s"] / figures["copy_s"])


def test_the_table_shows_both_directions() -> None:
    benchmark = copy_benchmark(chunks=2, chunk_bytes=4096, layers=1, device="host", repeat=1)
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(copy_table(benchmark))
    text = console.export_text()
    assert "store" in text
    assert "load" in text
    assert "2 random chunks of 4,096 bytes in 1 layers: host, pinned" in text


@pytest.mark.gpu
def test_the_copy_benchmark_runs_on_cuda() -> None:
    assert copy_benchmark(chunks=8, layers=4, device="cuda", repeat=3).engine == "cuda-batch"


def test_what_cannot_be_measured_is_refused() -> None:
    with pytest.raises(ArgumentError, match="at least 1"):
        copy_benchmark(chunks=0)
    with pytest.raises(ArgumentError, match="layers must divide chunk_bytes, got 3 and 4096"):
        copy_benchmark(chunk_bytes=4096, layers=3)
    with pytest.raises(ConfigError, match=r"256 chunks of 1,000,000,000,000 bytes do not fit"):
        copy_benchmark(chunk_bytes=10**12, device="host")
    with pytest.raises(ConfigError, match="device"):
        copy_benchmark(device="tpu")
