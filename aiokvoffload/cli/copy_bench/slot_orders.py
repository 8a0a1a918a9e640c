"""Slots for jobs, in each order. Knows the pool of the CPU tier, and nothing of bytes."""

from collections.abc import Iterator, Sequence
from itertools import count, islice

import numpy as np

from aiokvoffload.base import Ids, ReqContext, make_offload_key
from aiokvoffload.cli.copy_bench.options import SlotOrder
from aiokvoffload.cli.trace import TraceRequest
from aiokvoffload.config import GroupConfig
from aiokvoffload.cpu.common import PAGE_BYTES, CPULoadStoreSpec, PoolShape
from aiokvoffload.cpu.manager import CPUOffloadingManager
from aiokvoffload.errors import InternalError

TURNOVERS = 3
"""How often the trace's chunks have replaced a pool's content before slots are taken from it."""
RUN_KEYS = 512
"""Stored at once, as the service does."""


class SlotChooser:
    """Chooses slots out of one half of a pool for stores and out of the other for loads.

    Args:
        order: which slots.
        num_slots: of the whole pool.
        job_slots: of one job, at most half of it.
        requests: the trace that ages the pool.
    """

    def __init__(self, order: SlotOrder, num_slots: int, job_slots: int, requests: Sequence[TraceRequest]) -> None:
        self._order, self._half, self._job_slots = order, num_slots // 2, job_slots
        self._random = np.random.default_rng(0)
        self._aged = aged_slots(self._half, job_slots, requests) if order is SlotOrder.AGED else None

    def choose(self, half: int) -> Ids:
        """Slots of one job, in chain order; `half` is 0 or 1."""
        if self._aged is not None:
            slots = next(self._aged)
        elif self._order is SlotOrder.ADJACENT:
            first = self._random.integers(0, self._half - self._job_slots + 1)
            slots = np.arange(first, first + self._job_slots)
        else:
            slots = self._random.permutation(self._half)[: self._job_slots]
        return slots + half * self._half


def aged_slots(num_slots: int, job_slots: int, requests: Sequence[TraceRequest]) -> Iterator[Ids]:
    """Slots in the order in which a manager whose pool a trace has gone through hands them out, a job at a time.

    Args:
        num_slots: of the pool.
        job_slots: of a job, at most a pool's.
        requests: the trace; it is repeated without end, each time with keys of its own.
    """
    manager = CPUOffloadingManager([PoolShape((0,), PAGE_BYTES, num_slots)], groups=[GroupConfig()])
    handed_out = 0
    job: dict[int, None] = {}  # a slot may be evicted and handed out again within one job, which names it once
    for number in count():
        slots = _store(manager, requests[number % len(requests)], number, len(requests))
        handed_out += len(slots)
        if handed_out < TURNOVERS * num_slots:
            continue
        job.update(dict.fromkeys(slots))
        if len(job) >= job_slots:
            yield np.array(list(islice(job, job_slots)), dtype=np.int64)
            job.clear()


def _store(manager: CPUOffloadingManager, request: TraceRequest, number: int, period: int) -> list[int]:
    """Have the manager serve one request; returns the slots of what it stores."""
    context = ReqContext(str(number))
    turn = (number // period).to_bytes(4, "big")
    keys = [make_offload_key(turn + hash_id.to_bytes(8, "big"), 0) for hash_id in request.hash_ids]
    manager.on_new_request(context)
    slots: list[int] = []
    for start in range(0, len(keys), RUN_KEYS):
        prepared = manager.prepare_store(keys[start : start + RUN_KEYS], context)
        if prepared is None:
            break
        if not isinstance(prepared.spec, CPULoadStoreSpec):
            raise InternalError(f"the CPU tier named slots by {prepared.spec!r}")
        slots += prepared.spec.chunk_ids.tolist()
        manager.complete_store(prepared.token)
    manager.on_request_finished(context)
    manager.take_events()
    return slots
