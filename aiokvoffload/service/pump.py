"""Takes turns: one bounded piece of work per pass of the loop, however many requests want theirs at once (I10).

A pass of the loop runs everything that is ready, so sixty tasks that each take half a millisecond block it for thirty.
Here they stand in line instead. The pump knows flows and lanes; it does not know what they move.
"""

import asyncio
import enum
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Protocol

logger = logging.getLogger(__name__)


class Progress(enum.Enum):
    """What a step of a flow leaves behind."""

    AGAIN = "again"
    PARKED = "parked"
    """Nothing can be done before something else ends; the flow asks for its next step itself."""
    DONE = "done"


class Flow(Protocol):
    """Work that is done in steps of well under a millisecond."""

    def step(self) -> Progress:
        """Do one piece."""
        ...

    def fail(self, error: Exception, /) -> None:
        """End the flow because a step raised `error`."""
        ...

    @property
    def walked(self) -> bool:
        """Whether no step is left."""
        ...


class Lane:
    """The flows of one request in call order: jobs that share a GPU block are submitted in that order (I8).

    Attributes:
        flows: in call order.
        expedited: whether it goes before others.
        queued: whether it stands in line.
        stopped: whether its flows submit nothing more, although not all have been told so.
    """

    __slots__ = ("expedited", "flows", "queued", "stopped")

    def __init__(self, *, expedited: bool = False) -> None:
        self.flows: deque[Flow] = deque()
        self.expedited = expedited
        self.queued = self.stopped = False


async def _nobody_to_wait_for() -> None:
    pass


async def _next_pass() -> None:
    await asyncio.sleep(0)


class Pump:
    """Steps the lanes in turn.

    Args:
        has_room: whether another job may be submitted now (I11).
        wait_allowed: returns when whoever is to keep up with what comes of it has done so, after a bounded while.
        wait_turn: returns in a pass of the loop in which there is time for a step, in which there was none before.
    """

    def __init__(
        self,
        has_room: Callable[[], bool],
        wait_allowed: Callable[[], Awaitable[None]] = _nobody_to_wait_for,
        wait_turn: Callable[[], Awaitable[None]] = _next_pass,
    ) -> None:
        self._has_room, self._wait_allowed, self._wait_turn = has_room, wait_allowed, wait_turn
        self._ready: deque[Lane] = deque()
        self._changed = asyncio.Event()
        self.waiting_flows = 0

    def push(self, lane: Lane, flow: Flow) -> None:
        """Put `flow` behind its lane's other flows."""
        lane.flows.append(flow)
        self.waiting_flows += 1
        if len(lane.flows) == 1:
            self.wake(lane)

    def wake(self, lane: Lane) -> None:
        """The head of `lane` can take a step; repeating it does nothing."""
        if lane.queued or not lane.flows:
            return
        lane.queued = True
        if lane.expedited:
            self._ready.appendleft(lane)
        else:
            self._ready.append(lane)
        self._changed.set()

    def leave(self, lane: Lane) -> None:
        """The head of `lane` has taken its last step; the next flow takes its place."""
        lane.flows.popleft()
        self.waiting_flows -= 1

    def forget(self) -> None:
        """Nobody steps any more: what waits here has ended, or ends elsewhere."""
        self._ready.clear()
        self.waiting_flows = 0

    def room_changed(self) -> None:
        """A job ended."""
        if self._ready:
            self._changed.set()

    async def run(self) -> None:
        """Step lanes until cancelled."""
        while True:
            await self._wait_allowed()
            while not (self._ready and self._has_room()):
                self._changed.clear()
                await self._changed.wait()
            await self._wait_turn()
            if self._ready and self._has_room():
                self._step(self._ready.popleft())

    def _step(self, lane: Lane) -> None:
        lane.queued = False
        if not lane.flows:
            return
        progress = guarded_step(lane.flows[0])
        if progress is Progress.DONE:
            self.leave(lane)
        if progress is not Progress.PARKED:
            self.wake(lane)

    def __repr__(self) -> str:
        return f"<Pump {self.waiting_flows} flows, {len(self._ready)} lanes ready>"


def guarded_step(flow: Flow) -> Progress:
    """Step `flow`; an error ends that flow and nobody else's."""
    try:
        return flow.step()
    except Exception as error:
        logger.exception("a step of %r failed", flow)
        flow.fail(error)
        return Progress.DONE


class Turnstile:
    """Lets one task pass per pass of the loop, at once when nobody is ahead: one that enters, or one that goes on.

    Where both kinds wait they take turns, so that neither keeps the other out.
    """

    def __init__(self) -> None:
        self._entering: deque[asyncio.Future[None]] = deque()
        self._going_on: deque[asyncio.Future[None]] = deque()
        self._taken = False

    async def wait_turn(self) -> None:
        """Return when it is the turn of the caller, who enters."""
        await self._wait(self._entering)

    async def wait_step(self) -> None:
        """Return when it is the turn of the caller, who goes on with what has entered."""
        await self._wait(self._going_on)

    async def _wait(self, line: deque[asyncio.Future[None]]) -> None:
        loop = asyncio.get_running_loop()
        if not self._taken:
            self._taken = True
            loop.call_soon(self._next, line is self._entering)
            return
        turn = loop.create_future()
        line.append(turn)
        await turn

    def _next(self, someone_entered: bool) -> None:
        lines = (self._going_on, self._entering) if someone_entered else (self._entering, self._going_on)
        for line in lines:
            while line:
                turn = line.popleft()
                if not turn.done():  # a cancelled task leaves its future behind
                    turn.set_result(None)
                    asyncio.get_running_loop().call_soon(self._next, line is self._entering)
                    return
        self._taken = False

    def __repr__(self) -> str:
        return f"<Turnstile {len(self._entering)} wait to enter, {len(self._going_on)} to go on>"
