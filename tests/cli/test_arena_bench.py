import asyncio
import gc
import io
import json

import pytest
from rich.console import Console

from aiokvoffload.cli import arena_bench
from aiokvoffload.cli.arena_bench import arena_benchmark, arena_table
from aiokvoffload.config import HostMemory
from aiokvoffload.errors import ConfigError, TransferError
from aiokvoffload.service import OffloadingService

SIZE_BYTES, CHUNK_BYTES = 1 << 20, 4096


@pytest.mark.parametrize("memory", HostMemory)
async def test_the_arena_benchmark_measures_the_service_and_torch_in_one_run(memory: HostMemory) -> None:
    benchmark = await arena_benchmark(
        size_bytes=SIZE_BYTES, chunk_bytes=CHUNK_BYTES, piece_bytes=1 << 18, memory=memory, device="host"
    )
    record = json.loads(benchmark.to_json())
    assert (record["memory"], record["size_bytes"], record["ready_bytes"]) == (memory.value, SIZE_BYTES, SIZE_BYTES)
    assert 0 < record["open_s"] < record["first_store_s"] <= record["grown_s"]
    assert record["ratio"] == pytest.approx(record["grown_s"] / record["torch_s"])
    assert {"p50", "p99", "max"} == set(record["loop_blocked_us"])
    assert record["pinned"] is False  # as the title says
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(arena_table(benchmark))
    text = " ".join(console.export_text().split())
    assert f"1,048,576 bytes of {memory.value} memory: host, not pinned" in text
    assert "the same from torch" in text


async def until_closed(offload: OffloadingService) -> None:
    while True:
        offload.statistics()
        await asyncio.sleep(0.001)


async def test_what_goes_wrong_meanwhile_is_all_that_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever waits for all memory would else be told that the service was closed, and nobody would ask."""

    async def store(_: object, number: int) -> float:
        if number:
            raise TransferError("the disk is full")
        return 0.0

    monkeypatch.setattr(arena_bench, "_store", store)
    monkeypatch.setattr(arena_bench, "wait_grown", until_closed)
    with pytest.raises(TransferError, match="the disk is full"):
        await arena_benchmark(size_bytes=SIZE_BYTES, chunk_bytes=CHUNK_BYTES, piece_bytes=1 << 18, device="host")
    gc.collect()
    assert caplog.text == ""


async def test_what_cannot_be_measured_is_refused() -> None:
    with pytest.raises(ConfigError, match="cpu_bytes"):
        await arena_benchmark(size_bytes=0, device="host")
    with pytest.raises(ConfigError, match="device"):
        await arena_benchmark(device="tpu")
