"""Waiting with an end: for somebody else's task, and never at its expense. Knows a clock; cancels no call."""

import asyncio
from typing import Any

from aiokvoffload.clock import Clock

_LATE_S = 0.05
"""A loop that wakes so long after a deadline was kept from its work, and from hearing of what had ended before."""
_PASSES = 50
"""Of the loop: what threads have brought meanwhile is told in some of them, and whoever waited for it goes on."""


async def returned_in_time(
    call: "asyncio.Future[Any]", clock: Clock, deadline_s: float, *, grace_s: float = 0.0
) -> bool:
    """Wait until `call` is done or the clock says `deadline_s`; whether it is done. A late call goes on (I2).

    Args:
        call: what to wait for.
        clock: measures the deadline.
        deadline_s: of the clock. Where the loop itself was late, what has ended by then still counts.
        grace_s: how much longer to wait then, for a call that could not go on while the loop did not.
    """
    await _wait(call, clock, deadline_s)
    if not call.done() and clock.now_s() - deadline_s > _LATE_S:
        await _hear_of(call)
        if grace_s and not call.done():
            await _wait(call, clock, clock.now_s() + grace_s)
    return call.done()


async def _hear_of(call: "asyncio.Future[Any]") -> None:
    for _ in range(_PASSES):
        if call.done():
            return
        await asyncio.sleep(0)


async def _wait(call: "asyncio.Future[Any]", clock: Clock, deadline_s: float) -> None:
    deadline = asyncio.create_task(clock.sleep_until(deadline_s), name="aiokvoffload-deadline")
    try:
        await asyncio.wait((call, deadline), return_when=asyncio.FIRST_COMPLETED)
    finally:
        deadline.cancel()
        await asyncio.wait((deadline,))
