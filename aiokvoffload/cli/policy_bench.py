"""What policies keep of a trace, through the real manager: hit ratios beside the best possible, time and memory.

Knows traces, a manager and a clock; what is drawn of it is in `policy_plot`.
"""

import gc
import itertools
import json
import time
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from statistics import fmean

from rich.table import Table

from aiokvoffload.base import OffloadKey, ReqContext, make_offload_key
from aiokvoffload.cli.belady import belady_hits
from aiokvoffload.cli.manager_bench import make_manager, serve
from aiokvoffload.cli.trace import TraceRequest, read_trace
from aiokvoffload.cli.workloads import WORKLOADS, make_workload
from aiokvoffload.errors import ArgumentError

WARM_TURNOVERS = 10
"""A cache counts as warm when so many times its capacity of blocks have been asked for."""
_CHAIN_KEYS = 16
_TIMED_KEYS = 16_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyFigures:
    """One policy at one capacity on one trace; means over the seeds.

    Attributes:
        trace: name of the trace.
        policy: name of the policy.
        capacity: chunks that the pool holds.
        requests, blocks: of the trace, of the first seed.
        hit_ratio: leading resident blocks of a request over all blocks, from the empty cache on.
        warm_hit_ratio: the same for the requests from 10 times the capacity on; `None` if there are none.
        bound: the hit ratio of perfect foresight (see `belady`).
        refused_ratio: blocks that were offered and not kept, over all blocks.
        us_per_block: microseconds inside the manager, per block; the least of the seeds.
        full_us_per_block: the same when the pool is full, whatever the trace: half of the blocks are hits.
        metadata_bytes_per_key: memory of the manager when it is full, over resident keys of 36 bytes, which are in it.
    """

    trace: str
    policy: str
    capacity: int
    requests: int
    blocks: int
    hit_ratio: float
    warm_hit_ratio: float | None
    bound: float
    refused_ratio: float
    us_per_block: float
    full_us_per_block: float
    metadata_bytes_per_key: float


@dataclass(frozen=True, slots=True)
class _Run:
    hit_ratio: float
    warm_hit_ratio: float | None
    refused_ratio: float
    us_per_block: float


def load_traces(name: str, *, seeds: int, blocks: int) -> list[list[TraceRequest]]:
    """For each seed a trace: of a generated workload if there is one of this name, else the file, which is the same.

    Raises:
        ArgumentError: the file is no trace.
    """
    if name in WORKLOADS:
        return [make_workload(name, seed=seed, blocks=blocks) for seed in range(seeds)]
    return [read_trace(Path(name))] * seeds


def _require_there(name: str) -> None:
    if name not in WORKLOADS and not Path(name).is_file():
        raise ArgumentError(f"trace {name!r}: no such file, nor one of the workloads {', '.join(WORKLOADS)}")


def policy_benchmark(
    traces: Sequence[str],
    *,
    policies: Sequence[str],
    capacities: Sequence[int],
    seeds: int = 1,
    blocks: int = 200_000,
    on_run: Callable[[], None] = lambda: None,
) -> list[PolicyFigures]:
    """Serve each trace with each policy at each capacity.

    Args:
        traces: files, or names of generated workloads.
        policies: names.
        capacities: chunks.
        seeds: runs to take the mean of. A seed changes the keys' names, and with them what a policy samples, and the
            requests of a generated workload.
        blocks: length of a generated workload.
        on_run: called after each policy and capacity, once for no trace and once for each.

    Raises:
        ArgumentError: a trace cannot be read.
        ConfigError: there is no such policy.
    """
    for name in traces:  # before anything that takes long
        _require_there(name)
    metadata, full_us = dict[tuple[str, int], float](), dict[tuple[str, int], float]()
    for each in itertools.product(policies, capacities):
        metadata[each], full_us[each] = metadata_bytes_per_key(*each), full_us_per_block(*each)
        on_run()
    figures = []
    for name in traces:
        seeded = load_traces(name, seeds=seeds, blocks=blocks)
        sizes = [sum(len(request.hash_ids) for request in requests) for requests in seeded]
        for capacity in capacities:
            bound = _bound(seeded, sizes, capacity)
            for policy in policies:
                runs = [_run(requests, policy, capacity, seed) for seed, requests in enumerate(seeded)]
                warm = [run.warm_hit_ratio for run in runs if run.warm_hit_ratio is not None]
                figures.append(
                    PolicyFigures(
                        trace=Path(name).name,
                        policy=policy,
                        capacity=capacity,
                        requests=len(seeded[0]),
                        blocks=sizes[0],
                        hit_ratio=fmean(run.hit_ratio for run in runs),
                        warm_hit_ratio=fmean(warm) if warm else None,
                        bound=bound,
                        refused_ratio=fmean(run.refused_ratio for run in runs),
                        us_per_block=min(run.us_per_block for run in runs),
                        full_us_per_block=full_us[policy, capacity],
                        metadata_bytes_per_key=metadata[policy, capacity],
                    )
                )
                on_run()
    return figures


def _bound(seeded: Sequence[Sequence[TraceRequest]], sizes: Sequence[int], capacity: int) -> float:
    distinct = {id(requests): (requests, size) for requests, size in zip(seeded, sizes, strict=True)}
    return fmean(
        belady_hits([request.hash_ids for request in requests], capacity) / size for requests, size in distinct.values()
    )


def _run(requests: Sequence[TraceRequest], policy: str, capacity: int, seed: int) -> _Run:
    manager, salt = make_manager(policy, capacity), seed.to_bytes(4, "big")
    blocks = hits = warm_blocks = warm_hits = spent_ns = 0
    for request in requests:
        keys, ctx = request.keys(salt), ReqContext(request.name)
        began_ns = time.perf_counter_ns()
        served = serve(manager, keys, ctx)
        spent_ns += time.perf_counter_ns() - began_ns
        if blocks >= WARM_TURNOVERS * capacity:
            warm_blocks += len(keys)
            warm_hits += served
        blocks += len(keys)
        hits += served
    manager.check_integrity()
    warm = warm_hits / warm_blocks if warm_blocks else None
    return _Run(hits / blocks, warm, manager.statistics().refused / blocks, spent_ns / 1e3 / blocks)


def metadata_bytes_per_key(policy: str, capacity: int) -> float:
    """Memory of a manager that was filled twice over with chains of new keys, over the keys that are resident."""
    make_manager(policy, 1)  # imports what is imported when it is first asked for
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        manager = make_manager(policy, capacity)
        for first in range(0, 2 * capacity, _CHAIN_KEYS):
            serve(manager, _new_keys(first), ReqContext(str(first)))
        gc.collect()
        return (tracemalloc.get_traced_memory()[0] - before) / manager.statistics().pools[0].evictable
    finally:
        tracemalloc.stop()


def full_us_per_block(policy: str, capacity: int) -> float:
    """Microseconds a block of a manager whose pool is full, over chains of new keys, each asked for twice."""
    manager = make_manager(policy, capacity)
    filled = -(-capacity // _CHAIN_KEYS) * _CHAIN_KEYS
    for first in range(0, filled, _CHAIN_KEYS):
        serve(manager, _new_keys(first), ReqContext(str(first)))
    spent_ns = 0
    for first in range(filled, filled + _TIMED_KEYS, _CHAIN_KEYS):
        keys = _new_keys(first)
        began_ns = time.perf_counter_ns()
        serve(manager, keys, ReqContext(f"{first}"))
        serve(manager, keys, ReqContext(f"{first} again"))
        spent_ns += time.perf_counter_ns() - began_ns
    return spent_ns / 1e3 / (2 * _TIMED_KEYS)


def _new_keys(first: int) -> list[OffloadKey]:
    return [make_offload_key(sha256(number.to_bytes(8)).digest(), 0) for number in range(first, first + _CHAIN_KEYS)]


def policy_json(figures: Sequence[PolicyFigures]) -> str:
    """The records as one JSON list."""
    return json.dumps([asdict(each) for each in figures], indent=2)


def policy_table(figures: Sequence[PolicyFigures]) -> Table:
    """The figures for people."""
    table = Table(title="The manager alone: what policies keep, and what it costs", padding=0)
    table.add_column("trace", overflow="fold")
    table.add_column("chunks", justify="right", no_wrap=True)
    table.add_column("policy", overflow="fold")
    # In two lines, so that all of it fits a terminal of 80 columns.
    for column in ("hit\nratio", "warm", "bound", "refused", "µs per\nblock", "when\nfull", "bytes\nper key"):
        table.add_column(column, justify="right", no_wrap=True)
    for each in figures:
        warm = "" if each.warm_hit_ratio is None else f"{each.warm_hit_ratio:.4f}"
        table.add_row(
            each.trace,
            f"{each.capacity:,}",
            each.policy,
            f"{each.hit_ratio:.4f}",
            warm,
            f"{each.bound:.4f}",
            f"{each.refused_ratio:.1%}",
            f"{each.us_per_block:.2f}",
            f"{each.full_us_per_block:.2f}",
            f"{each.metadata_bytes_per_key:.0f}",
        )
    return table
