"""One request of an engine without a loop: opened by its first call, and kept open by a task until it is left."""

import asyncio

from aiokvoffload.errors import ClosedError, OffloadError
from aiokvoffload.service.request import Request


class _AbortedError(Exception):
    """Leaves a request the way an exception of the engine's would."""


class OpenRequest:
    """One request on the loop's thread, from its first call to its end."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.opened: asyncio.Future[Request] = loop.create_future()
        self.left: asyncio.Future[OffloadError | None] = loop.create_future()
        self._leaving: asyncio.Future[bool] = loop.create_future()

    def leave(self, *, abort: bool) -> None:
        """End it."""
        if not self._leaving.done():
            self._leaving.set_result(abort)

    async def run(self, request: Request) -> None:
        """Keep it open until it is to be left, and until nothing touches its GPU blocks."""
        error: OffloadError | None = None
        try:
            async with request as door:
                self.opened.set_result(door)
                _raise_if(await self._leaving)
        except _AbortedError:
            pass
        except OffloadError as caught:
            error = caught
        if not self.opened.done():
            self.opened.set_exception(error or ClosedError("the request was aborted before it was open"))
        self.left.set_result(error)


def _raise_if(aborted: bool) -> None:
    if aborted:
        raise _AbortedError
