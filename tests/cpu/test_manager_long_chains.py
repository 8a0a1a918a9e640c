"""What a run of a long chain costs must not depend on how much of the chain came before it (I10)."""

from collections.abc import Sequence
from statistics import median

import pytest

from aiokvoffload.base import OffloadKey, ReqContext, make_offload_key
from aiokvoffload.config import GroupConfig
from aiokvoffload.cpu.common import PoolShape
from aiokvoffload.cpu.manager import CPUOffloadingManager
from aiokvoffload.registry import BUILTIN

POLICIES = tuple(BUILTIN["policies"])

RUN_KEYS = 32
CHAIN_KEYS = 64 * RUN_KEYS
ROOMY, FULL, TOO_SMALL = 4 * CHAIN_KEYS, CHAIN_KEYS * 5 // 4, CHAIN_KEYS * 3 // 4


class CountedKey(bytes):
    """A key that counts how often one of its kind is looked up: work, measured without a clock."""

    lookups = 0

    def __hash__(self) -> int:
        CountedKey.lookups += 1
        return super().__hash__()


def make_runs(name: str, num_keys: int, num_groups: int) -> list[list[OffloadKey]]:
    """Runs over all groups, group after group."""
    return [
        [
            OffloadKey(CountedKey(make_offload_key(f"{name}/{number:06}".encode(), group_idx)))
            for group_idx in range(num_groups)
            for number in range(start, start + RUN_KEYS)
        ]
        for start in range(0, num_keys, RUN_KEYS)
    ]


def make_manager(num_slots: int, policy: str, num_groups: int) -> CPUOffloadingManager:
    return CPUOffloadingManager(
        [PoolShape((index,), 4096 * (index + 1), num_slots) for index in range(num_groups)],
        groups=[GroupConfig()] * num_groups,
        policy=policy,
    )


def work_by_run(manager: CPUOffloadingManager, runs: Sequence[Sequence[OffloadKey]], ctx: ReqContext) -> list[int]:
    """Look-ups of each run's store, of which up to four are under way at once."""
    work, tokens = [], []
    for run in runs:
        CountedKey.lookups = 0
        output = manager.prepare_store(run, ctx)
        if output is not None:
            tokens.append(output.token)
        if len(tokens) > 4:
            manager.complete_store(tokens.pop(0))
        work.append(CountedKey.lookups)
    for token in tokens:
        manager.complete_store(token)
    return work


@pytest.mark.parametrize("num_groups", [1, 2])
@pytest.mark.parametrize("use_again", [False, True], ids=["used once", "used again"])
@pytest.mark.parametrize("num_slots", [ROOMY, FULL, TOO_SMALL], ids=["roomy", "full", "too small"])
@pytest.mark.parametrize("policy", POLICIES)
def test_the_last_run_of_a_long_chain_costs_what_its_first_cost(
    policy: str, num_slots: int, use_again: bool, num_groups: int
) -> None:
    manager = make_manager(num_slots, policy, num_groups)
    if num_slots != ROOMY:
        old = make_runs("old", num_slots, num_groups)
        work_by_run(manager, old, ReqContext("not begun"))
        for run in old if use_again else ():
            manager.touch(run, ReqContext("not begun"))
    ctx = ReqContext("long")
    manager.on_new_request(ctx)
    work = work_by_run(manager, make_runs("new", CHAIN_KEYS, num_groups), ctx)
    assert median(work[-8:]) <= 2 * median(work[:8])
    manager.check_integrity()


@pytest.mark.parametrize("policy", POLICIES)
def test_a_request_whose_keys_fill_the_cache_is_refused_without_looking_at_them_each_time(policy: str) -> None:
    manager = make_manager(CHAIN_KEYS, policy, 1)
    ctx = ReqContext("long")
    manager.on_new_request(ctx)
    work_by_run(manager, make_runs("own", CHAIN_KEYS, 1), ctx)
    work = work_by_run(manager, make_runs("more", 4 * RUN_KEYS, 1), ctx)
    assert manager.statistics().refused == 4 * RUN_KEYS
    assert max(work[1:]) < CHAIN_KEYS // 4
