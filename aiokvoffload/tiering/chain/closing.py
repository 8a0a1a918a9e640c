"""The end of one tier's service: what is owed to it goes down first, and what there is no time for is counted.

Knows the lane and what the manager owes it; other tiers it does not know.
"""

import asyncio
import logging
from collections.abc import Sequence
from functools import partial

from aiokvoffload.base import SecondaryTier
from aiokvoffload.clock import Clock
from aiokvoffload.tiering.chain.link import Link
from aiokvoffload.tiering.manager import TieringOffloadingManager

logger = logging.getLogger(__name__)

_DRAIN_SHARE = 0.8
"""Of a close's time; the rest is for the calls that run by then to return, and for the tier to close."""


async def close_link(link: Link, manager: TieringOffloadingManager, *, clock: Clock, timeout_s: float) -> str:
    """Give the tier what it is owed, then close it.

    Returns:
        What was left, for people; empty if nothing was. Keys that were dropped are counted, and no error.
    """
    lane, name, began_s = link.lane, link.lane.tier.name, clock.now_s()
    await lane.drain(began_s + _DRAIN_SHARE * timeout_s, is_owed=partial(manager.is_owed, name))
    manager.end_cascades(name)
    lane.stop()
    if dropped := link.counts.dropped_at_close + manager.count_dropped(name).at_close:
        logger.warning("tier %s: the close had no time for %d keys that were to go down", name, dropped)
    # The tier has its share also where the loop was kept from its work until the time was over.
    return await lane.aclose(max(began_s + timeout_s, clock.now_s() + (1 - _DRAIN_SHARE) * timeout_s))


async def close_all(tiers: Sequence[SecondaryTier]) -> None:
    """Close tiers of which no use was made, side by side; what one of them left is logged.

    Whoever is cancelled meanwhile waits all the same, as long as tiers take: they have nothing to do.

    Raises:
        CancelledError: somebody cancelled it; the tiers are closed.
    """
    closing = asyncio.gather(*(tier.aclose() for tier in tiers), return_exceptions=True)
    cancelled = False
    while not closing.done():
        try:
            await asyncio.wait([closing])
        except asyncio.CancelledError:
            cancelled = True
    for tier, error in zip(tiers, closing.result(), strict=True):
        if error is not None:
            logger.warning("tier %s: it was opened for nobody, and could not be closed: %s", tier.name, error)
    if cancelled:
        raise asyncio.CancelledError
