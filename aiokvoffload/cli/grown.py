"""For measurements, which are to start with all of the memory that they were asked to measure with."""

from aiokvoffload.errors import ConfigError
from aiokvoffload.service import OffloadingService


async def wait_grown(offload: OffloadingService) -> None:
    """Wait until all memory for slots is ready.

    Raises:
        ConfigError: there is not so much, or it cannot be pinned.
    """
    growth = await offload.wait_grown()
    if growth.error:
        raise ConfigError(f"not all CPU memory could be had, only slots {growth.ready_slots}: {growth.error}")
