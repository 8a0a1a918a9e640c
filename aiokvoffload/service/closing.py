"""How a service's parts are closed, and that it comes to its end whoever is cancelled meanwhile."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from aiokvoffload.base import OffloadingWorker
from aiokvoffload.service.parts import Parts
from aiokvoffload.tiering.chain import Chain

ResultT = TypeVar("ResultT")

_CANCELLATIONS = 3
"""So many are overcome for each step. Whoever ends a loop cancels every task once, and waits for all of them."""


async def undeterred(step: Callable[[], Awaitable[ResultT]]) -> ResultT:
    """Take a step, and take it again if it is cancelled; it must bear that."""
    for _ in range(_CANCELLATIONS):
        try:
            return await step()
        except asyncio.CancelledError:
            continue
    return await step()


async def shielded(closing: Coroutine[Any, Any, None]) -> None:
    """Close something in a task of its own, so that a cancellation stops the waiting and not the closing."""
    await asyncio.shield(asyncio.create_task(closing, name="aiokvoffload-discard"))


async def close_workers(workers: Sequence[OffloadingWorker]) -> list[BaseException]:
    """Close all, and return what they raised."""
    ends = await asyncio.gather(*(worker.aclose() for worker in workers), return_exceptions=True)
    errors = [end for end in ends if isinstance(end, BaseException)]
    if cancelled := [error for error in errors if isinstance(error, asyncio.CancelledError)]:
        raise cancelled[0]  # whoever waited was, not the closing: it is to be asked again
    return errors


async def close_unused(parts: Parts, chain: Chain | None = None) -> None:
    """Close parts that were opened for nobody, and the chain of tiers below them where that is open."""
    if chain is not None and parts.tiers is not None:
        await chain.aclose(parts.tiers.close_timeout_s)
    await asyncio.gather(*(worker.aclose() for worker in parts.workers))
    if parts.device is not None:
        await asyncio.to_thread(parts.device.close)
