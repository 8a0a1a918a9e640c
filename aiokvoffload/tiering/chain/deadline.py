"""Waiting with an end: for somebody else's task, and never at its expense. Knows a clock; cancels no call."""

import asyncio
from typing import Any

from aiokvoffload.clock import Clock


async def returned_in_time(call: "asyncio.Future[Any]", clock: Clock, deadline_s: float) -> bool:
    """Wait until `call` is done or the clock says `deadline_s`; whether it is done. A late call goes on (I2)."""
    deadline = asyncio.create_task(clock.sleep_until(deadline_s), name="aiokvoffload-deadline")
    try:
        await asyncio.wait((call, deadline), return_when=asyncio.FIRST_COMPLETED)
    finally:
        deadline.cancel()
        await asyncio.wait((deadline,))
    return call.done()
