"""How a service's parts are built off the loop, and closed again if nobody wants them any more."""

import asyncio
from collections.abc import Callable

from aiokvoffload.service.parts import Parts


async def build_on_thread(build: Callable[[], Parts]) -> Parts:
    """Run `build` off the loop. A thread cannot be cancelled: what it builds for nobody is closed when it is done."""
    building = asyncio.ensure_future(asyncio.to_thread(build))
    try:
        return await asyncio.shield(building)
    except asyncio.CancelledError:
        # In a task of its own, so that a second cancellation stops the waiting and not the closing.
        await asyncio.shield(asyncio.create_task(_discard(building), name="aiokvoffload-discard"))
        raise


async def close_unused(parts: Parts) -> None:
    """Close parts that were opened for nobody."""
    await asyncio.gather(*(worker.aclose() for worker in parts.workers))
    if parts.device is not None:
        await asyncio.to_thread(parts.device.close)


async def _discard(building: asyncio.Future[Parts]) -> None:
    await asyncio.wait([building])
    if building.exception() is None:
        await asyncio.to_thread(building.result().close)
