"""Waiting for the jobs of a worker that is being closed. Knows their ends, and nothing of what is freed then."""

import asyncio

from aiokvoffload.clock import Clock
from aiokvoffload.cpu.ledger import JobLedger


async def drain(ledger: JobLedger, clock: Clock, *, timeout_s: float) -> None:
    """Wait until every job has ended, up to the time-out."""
    deadline_s = clock.now_s() + timeout_s
    drained = asyncio.create_task(_all_ended(ledger))
    deadline = asyncio.create_task(clock.sleep_until(deadline_s))
    try:
        await asyncio.wait((drained, deadline), return_when=asyncio.FIRST_COMPLETED)
        if drained.cancelled() or deadline.cancelled():
            raise asyncio.CancelledError
    finally:
        drained.cancel()
        deadline.cancel()
        await asyncio.wait((drained, deadline))


async def _all_ended(ledger: JobLedger) -> None:
    while jobs := ledger.unsettled:
        for job in jobs:
            await job.transfer
            await job.transfer.released
