"""How a service's parts are built off the loop, and closed again if nobody wants them any more."""

import asyncio
from collections.abc import Callable

from aiokvoffload.service.closing import shielded
from aiokvoffload.service.parts import Parts


async def build_on_thread(build: Callable[[], Parts]) -> Parts:
    """Run `build` off the loop. A thread cannot be cancelled: what it builds for nobody is closed when it is done."""
    building = asyncio.ensure_future(asyncio.to_thread(build))
    try:
        return await asyncio.shield(building)
    except asyncio.CancelledError:
        await shielded(_discard(building))
        raise


async def _discard(building: asyncio.Future[Parts]) -> None:
    await asyncio.wait([building])
    if building.exception() is None:
        await asyncio.to_thread(building.result().close)
