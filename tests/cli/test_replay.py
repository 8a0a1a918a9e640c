import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from aiokvoffload.cli.replay import ReplayOptions, choose_sizes, replay
from aiokvoffload.cli.scrape import NoAnswerError, endpoint, scrape
from aiokvoffload.cli.trace import TraceRequest, read_trace
from aiokvoffload.cli.traces import SAMPLE_TRACE
from aiokvoffload.copy.direction import Direction
from aiokvoffload.copy.plan import CopyPlan, plan_copies
from aiokvoffload.copy.selection import Selection
from aiokvoffload.errors import ArgumentError, ConfigError, OffloadError
from tests.loopback import kept_port

OPTIONS = ReplayOptions(device="host", verify=True, chunk_bytes=4096)


def conversation(turns: int, *, first_id: int = 0, growth: int = 3) -> list[TraceRequest]:
    """Requests that each repeat the prompt before and add to it."""
    return [TraceRequest(turn + 1, tuple(range(first_id, first_id + growth * (turn + 1)))) for turn in range(turns)]


def lru_served_blocks(requests: Sequence[TraceRequest], capacity: int) -> int:
    """The simplest possible model of the CPU tier with one request at a time."""
    resident: OrderedDict[int, None] = OrderedDict()
    served = 0
    for request in requests:
        leading = next((n for n, key in enumerate(request.hash_ids) if key not in resident), len(request.hash_ids))
        served += leading
        for hash_id in reversed(request.hash_ids):
            resident[hash_id] = None
            resident.move_to_end(hash_id)
        while len(resident) > capacity:
            resident.popitem(last=False)
    return served


async def test_what_was_stored_comes_back_right_and_nothing_is_left() -> None:
    report = await replay(conversation(6), OPTIONS)
    assert report.ok
    assert report.requests == 6
    assert report.verified_blocks == report.served_blocks > 0
    assert report.loaded_bytes == report.served_blocks * 4096
    assert report.stored_bytes == 18 * 4096
    assert report.loop_blocked_us.max >= 0


async def test_one_request_at_a_time_is_served_exactly_what_lru_keeps() -> None:
    requests = read_trace(SAMPLE_TRACE, limit=80)
    options = replace(OPTIONS, policy="lru", concurrency=1, cpu_chunks=300)
    report = await replay(requests, options)
    assert report.ok
    assert report.served_blocks == lru_served_blocks(requests, 300) > 0


@pytest.mark.parametrize("policy", ["lru", "adaptive"])
async def test_many_requests_share_a_small_cache_and_every_byte_is_right(policy: str) -> None:
    requests = read_trace(SAMPLE_TRACE, limit=120)
    options = replace(OPTIONS, policy=policy, cpu_chunks=150, gpu_blocks=96, concurrency=24)
    report = await replay(requests, options)
    assert report.ok
    assert report.verified_blocks == report.served_blocks > 0


async def test_a_cache_smaller_than_one_prompt_still_serves_requests() -> None:
    report = await replay(conversation(4), replace(OPTIONS, cpu_chunks=2, concurrency=2))
    assert report.ok


async def test_a_request_without_blocks_is_served() -> None:
    report = await replay([TraceRequest(1, ())], OPTIONS)
    assert report.ok
    assert report.blocks == 0


async def test_a_prompt_larger_than_the_pool_names_the_option() -> None:
    with pytest.raises(ArgumentError, match=r"line 3 of the trace needs 9 blocks, the pool has 8: raise --gpu-blocks"):
        await replay(conversation(3), replace(OPTIONS, gpu_blocks=8))


async def test_more_slots_than_there_is_memory_names_the_options() -> None:
    message = r"1,000,000,000 chunks of 1,048,576 bytes do not fit .*: lower --cpu-chunks or --chunk-bytes"
    with pytest.raises(ArgumentError, match=message):
        await replay(conversation(1), replace(OPTIONS, cpu_chunks=10**9, chunk_bytes=1 << 20))


async def test_an_unknown_policy_is_an_error_and_leaves_nothing() -> None:
    with pytest.raises(ConfigError, match="unknown name 'best'"):
        await replay(conversation(1), replace(OPTIONS, policy="best"))


async def test_a_cancelled_replay_waits_for_its_copies_and_leaves_nothing() -> None:
    """Invariant I2; the fixtures look for threads and tasks that are left over."""
    begun = asyncio.Event()
    running = asyncio.create_task(replay(read_trace(SAMPLE_TRACE), OPTIONS, on_served=begun.set))
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


def swap_first_two(plan: CopyPlan) -> CopyPlan:
    dst_ptrs = plan.dst_ptrs.copy()
    dst_ptrs[:2] = dst_ptrs[1::-1]
    return replace(plan, dst_ptrs=dst_ptrs)


async def test_two_fragments_that_change_places_turn_the_replay_red(monkeypatch: pytest.MonkeyPatch) -> None:
    def plan_wrongly(direction: Direction, selection: Selection) -> CopyPlan:
        plan = plan_copies(direction, selection)
        return swap_first_two(plan) if direction is Direction.LOAD else plan

    monkeypatch.setattr("aiokvoffload.copy.engine.plan_copies", plan_wrongly)
    report = await replay(conversation(2), replace(OPTIONS, concurrency=1))
    assert (report.verified_blocks, report.mismatches) == (3, 1)
    assert report.first_mismatch == "line 2, block 0 (hash id 0), tensor 0: 128 words differ"
    assert not report.ok


async def test_a_load_that_moves_nothing_turns_the_replay_red(monkeypatch: pytest.MonkeyPatch) -> None:
    def plan_nothing(direction: Direction, selection: Selection) -> CopyPlan:
        plan = plan_copies(direction, selection)
        return replace(plan, sizes=np.zeros_like(plan.sizes)) if direction is Direction.LOAD else plan

    monkeypatch.setattr("aiokvoffload.copy.engine.plan_copies", plan_nothing)
    report = await replay(conversation(2), replace(OPTIONS, concurrency=1))
    assert report.mismatches == report.verified_blocks == 3


async def test_a_load_that_fails_is_counted_and_its_blocks_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse_loads(direction: Direction, selection: Selection) -> CopyPlan:
        if direction is Direction.LOAD:
            raise OffloadError("refused")
        return plan_copies(direction, selection)

    monkeypatch.setattr("aiokvoffload.copy.engine.plan_copies", refuse_loads)
    report = await replay(conversation(3), replace(OPTIONS, concurrency=1))
    assert report.failed_loads == report.short_loads == 2
    assert (report.served_blocks, report.mismatches, report.leaks) == (0, 0, 0)
    assert not report.ok


def test_the_pool_holds_a_few_of_the_longest_prompt_unless_it_is_told_otherwise() -> None:
    requests = conversation(3)
    assert choose_sizes(requests, ReplayOptions(), on_host=True).gpu_blocks == 36
    assert choose_sizes(requests, ReplayOptions(gpu_blocks=9), on_host=True).gpu_blocks == 9


def test_memory_is_sized_for_whole_pages() -> None:
    sizes = choose_sizes(conversation(1), ReplayOptions(chunk_bytes=4128, cpu_chunks=10), on_host=True)
    assert sizes.cpu_bytes == 10 * 8192


async def test_a_second_replay_on_the_same_directory_begins_warm(tmp_path: Path) -> None:
    """A restart between: the chunks of the first replay are served from disk, every byte compared."""
    options = replace(OPTIONS, concurrency=1, cpu_chunks=8, disk_dir=tmp_path / "kv", disk_bytes=64 * 4096)
    first = await replay(conversation(6), options)
    second = await replay(conversation(6), options)
    assert first.ok
    assert second.ok
    assert first.disk is not None
    assert second.disk is not None
    assert (first.disk.warm_chunks, second.disk.warm_chunks) == (0, first.disk.chunks)
    assert second.served_blocks == second.verified_blocks >= first.served_blocks
    assert second.disk_blocks > 0
    assert any("warm" in value for _, value in second._rows())


async def test_a_prompt_longer_than_cpu_memory_is_served_from_disk(tmp_path: Path) -> None:
    options = replace(OPTIONS, concurrency=1, cpu_chunks=4, disk_dir=tmp_path / "kv", disk_bytes=64 * 4096)
    await replay(conversation(4, growth=1), options)
    report = await replay(conversation(4, growth=1), options)
    assert report.ok
    assert report.disk is not None
    assert report.disk.corrupt == report.disk.failed == 0


async def test_a_directory_and_its_size_belong_together(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="--disk-dir and --disk-bytes belong together"):
        await replay(conversation(1), replace(OPTIONS, disk_dir=tmp_path))


async def test_a_replay_serves_its_metrics_while_it_runs() -> None:
    begun = asyncio.Event()
    with kept_port() as port:
        options, url = replace(OPTIONS, metrics_port=port), endpoint(f"127.0.0.1:{port}")
        running = asyncio.create_task(replay(read_trace(SAMPLE_TRACE, limit=80), options, on_served=begun.set))
        await begun.wait()
        found = await asyncio.to_thread(scrape, url)
        assert found.sum("requested_transfers_total") > 0
        assert (await running).ok
        with pytest.raises(NoAnswerError):
            await asyncio.to_thread(scrape, url)
