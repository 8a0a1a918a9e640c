"""Who waits for something that there is too little of: first come, first served, whatever each of them needs.

Knows the order and cancellations; knows nothing of what is waited for.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

GrantT = TypeVar("GrantT")


@dataclass(frozen=True, slots=True, eq=False)
class _Waiter(Generic[GrantT]):
    take: Callable[[], GrantT | None]
    granted: "asyncio.Future[GrantT]"


class WaitingLine(Generic[GrantT]):
    """A line of which only the first is served. Its length is how many wait.

    Args:
        give_back: called with what was granted to somebody who was cancelled before he heard of it.
    """

    def __init__(self, give_back: Callable[[GrantT], None]) -> None:
        self._give_back = give_back
        self._waiters: deque[_Waiter[GrantT]] = deque()

    async def wait(self, take: Callable[[], GrantT | None]) -> GrantT:
        """Wait until everyone before has been served and `take()` gives something; a cancelled wait takes nothing."""
        waiter: _Waiter[GrantT] = _Waiter(take, asyncio.get_running_loop().create_future())
        self._waiters.append(waiter)
        self.serve()
        try:
            return await waiter.granted
        except asyncio.CancelledError:
            # A grant and a cancellation may meet in one turn of the loop.
            if not waiter.granted.cancelled():
                self._give_back(waiter.granted.result())
            elif waiter in self._waiters:
                self._waiters.remove(waiter)
                self.serve()
            raise

    def serve(self) -> None:
        """There may be enough now for the first ones."""
        while self._waiters:
            waiter = self._waiters[0]
            # Who is cancelled may not have been told yet; what he got would be nobody's.
            if not waiter.granted.cancelled():
                if (grant := waiter.take()) is None:
                    return
                waiter.granted.set_result(grant)
            self._waiters.popleft()

    def __len__(self) -> int:
        return len(self._waiters)

    def __repr__(self) -> str:
        return f"WaitingLine({len(self._waiters)} waiting)"
