"""Made-up request traces, by name and seed. Knows their length; knows nothing of how traffic looks, or of caches."""

import random

from aiokvoffload.cli.trace import TraceRequest
from aiokvoffload.cli.traffic_kinds import KINDS
from aiokvoffload.errors import ArgumentError

WORKLOADS = tuple(KINDS)


def make_workload(name: str, *, seed: int = 0, blocks: int = 200_000) -> list[TraceRequest]:
    """The first requests of a kind of traffic, until they have `blocks` blocks; the same for the same seed.

    Raises:
        ArgumentError: there is no such kind, or `blocks` is below 1.
    """
    if name not in KINDS:
        raise ArgumentError(f"unknown workload {name!r}; known: {', '.join(WORKLOADS)}")
    if blocks < 1:
        raise ArgumentError(f"blocks must be at least 1, got {blocks}")
    chains = KINDS[name](random.Random(seed))  # noqa: S311 - no secret is made of it
    requests: list[TraceRequest] = []
    while blocks > 0:
        requests.append(TraceRequest(len(requests) + 1, next(chains)))
        blocks -= len(requests[-1].hash_ids)
    return requests
