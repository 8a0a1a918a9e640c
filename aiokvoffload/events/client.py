"""Listens to a publisher of KV-cache events, this library's or any that speaks vLLM's protocol.

Knows numbers and sockets: it asks again for what it missed, and says so where nobody has that any more.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import Self

from aiokvoffload.errors import ArgumentError, BrokenError, BusyError, ClosedError
from aiokvoffload.events.records import EventRecord, GapRecord, Snapshot, TierSnapshot
from aiokvoffload.events.replies import Turns
from aiokvoffload.events.sockets import (
    Context,
    Socket,
    check_arguments,
    close_all,
    connect,
    open_dealer_socket,
    open_sub_socket,
)
from aiokvoffload.events.view import ResidentKeys
from aiokvoffload.events.wire import (
    MOST_SEQUENCE,
    SNAPSHOT_REQUEST,
    WireBatch,
    decode,
    pack_sequence,
    unpack_sequence,
)

logger = logging.getLogger(__name__)


class EventClient:
    """An async iterator of `EventRecord` and `GapRecord`. Open it with `async with`; one task iterates at a time.

    It begins with what is published from then on. For all that is resident ask for a `snapshot`, and take it in before
    what is iterated; records that are older than it do no harm in a `ResidentKeys`.

    Args:
        endpoint: of the PUB socket: `tcp://host:5557`.
        replay_endpoint: of the ROUTER socket; without it, whatever is missed is a gap.
        topic: what messages begin with.
        after: resume behind this record.
        high_water_mark: messages that ZeroMQ keeps until they are read; beyond it they are dropped, and replayed.
        timeout_s: how long an answer may take, or the next message of one.

    Raises:
        ArgumentError: a bound is not positive, or a text or a number is none.
    """

    def __init__(
        self,
        endpoint: str,
        replay_endpoint: str | None = None,
        *,
        topic: str = "",
        after: int | None = None,
        high_water_mark: int = 100_000,
        timeout_s: float = 5.0,
    ) -> None:
        texts = {"endpoint": endpoint, "replay_endpoint": replay_endpoint or "", "topic": topic}
        check_arguments("EventClient", texts=texts, high_water_mark=high_water_mark)
        if not (isinstance(timeout_s, int | float) and timeout_s > 0):
            raise ArgumentError(f"EventClient.timeout_s must be above 0, got {timeout_s!r}")
        if not (after is None or (isinstance(after, int) and -1 <= after < MOST_SEQUENCE)):
            raise ArgumentError(
                f"EventClient.after must be a record's number, from -1 to {MOST_SEQUENCE}, got {after!r}"
            )
        self._endpoint, self._replay_endpoint = endpoint, replay_endpoint
        self._topic, self._high_water_mark, self._timeout_s = topic.encode(), high_water_mark, timeout_s
        self._context: Context | None = None
        self._sub: Socket | None = None
        self._dealer: Socket | None = None
        self._asking = asyncio.Lock()
        self._ready: deque[EventRecord | GapRecord] = deque()
        # A publisher that begins with a lower number than was asked for is another one, too.
        self._heard = after
        self._is_hearing = False
        self._turns = Turns()
        self.position = after

    async def __aenter__(self) -> Self:
        if self._context is not None:
            raise ClosedError("a client is opened once")
        self._context = Context()
        try:
            self._sub = open_sub_socket(self._context, topic=self._topic, high_water_mark=self._high_water_mark)
            connect(self._sub, self._endpoint)
            self._connect_dealer()
            if self.position is not None and await self._catch_up(self.position + 1, None, ask_from=self.position):
                # Its replay may be ahead of its messages, so lower numbers than were asked for may still come.
                self._heard = None
        except BaseException:
            await self.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the sockets; repeating it does nothing."""
        context, sockets = self._context, (self._sub, self._dealer)
        self._context = self._sub = self._dealer = None
        if context is not None:
            await close_all(context, sockets)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> EventRecord | GapRecord:
        while not self._ready:
            if self._sub is None:
                raise StopAsyncIteration
            if self._is_hearing:
                raise BusyError(f"the client of {self._endpoint} is read by another task: open one for each")
            self._is_hearing = True
            try:
                await self._hear_next(self._sub)
            except asyncio.CancelledError:
                if not self._was_closed():
                    raise
            finally:
                self._is_hearing = False
        return self._ready.popleft()

    async def snapshot(self) -> Snapshot:
        """All keys that are resident, and the number of the record up to which that is true.

        Raises:
            BrokenError: no answer came in time, or the publisher has no snapshots.
            ClosedError: the client is not open, or has no replay endpoint.
        """
        view, tiers, sequence = ResidentKeys(), dict[str, str](), None
        async for batch in self._ask(SNAPSHOT_REQUEST):
            sequence = batch.sequence
            for event in batch.events:
                tiers[event.tier] = event.medium
                view.take(event)
        if sequence is None:
            raise BrokenError(f"snapshot: the publisher at {self._replay_endpoint} gives none, or not now")
        if self.position is None:
            # The subscription may begin later than the snapshot was made: what is missed between them is asked for.
            self.position = sequence
        parts = (TierSnapshot(medium, tier, (tuple(view.keys(tier)),)) for tier, medium in tiers.items())
        return Snapshot(sequence, tuple(parts))

    async def replay(self, first: int) -> AsyncIterator[WireBatch]:
        """What the publisher still has from number `first` on.

        Raises:
            BrokenError: no answer came in time.
            ClosedError: the client is not open, or has no replay endpoint.
        """
        async for batch in self._ask(pack_sequence(first)):
            yield batch

    def __repr__(self) -> str:
        state = "closed" if self._context is None else "open"
        return f"<EventClient of {self._endpoint}, {state}, at {self.position}>"

    async def _hear_next(self, sub: Socket) -> None:
        batch = _read(await sub.recv_multipart())
        if batch is not None:
            await self._hear(batch)
        await self._turns.spend(0)  # what has arrived is given without waiting (I10)

    def _was_closed(self) -> bool:
        """Whether closing the socket, not somebody who cancelled this task, ended its waiting."""
        task = asyncio.current_task()
        return self._context is None and not (task is not None and task.cancelling())

    async def _hear(self, batch: WireBatch) -> None:
        sequence = batch.sequence
        if self._heard is not None and sequence < self._heard:
            # A publisher sends its numbers in order, so another one has begun again from a lower number, which those
            # of this library do not: what came after the last one is not known, and what was known is void.
            self._ready.append(GapRecord(self._heard + 1, self._heard + 1))
            self.position = sequence - 1
        self._heard = sequence
        if self.position is not None and sequence > self.position + 1:
            await self._catch_up(self.position + 1, sequence)
        if self.position is None or sequence > self.position:
            self._take(batch)

    async def _catch_up(self, first: int, before: int | None, *, ask_from: int | None = None) -> bool:
        """Ask for the messages from `first` to `before`, exclusively; what does not come is a gap.

        Returns:
            Whether the publisher had anything from there, or from `ask_from` on.
        """
        expected, is_known = first, False
        start = max(0, first if ask_from is None else ask_from)
        try:
            async for batch in self._ask(pack_sequence(start)) if self._replay_endpoint else _nothing():
                is_known = True
                if batch.sequence < expected or (before is not None and batch.sequence >= before):
                    continue
                self._note_gap(expected, batch.sequence)
                self._take(batch)
                expected = batch.sequence + 1
        except BrokenError:
            pass  # nobody answers: what is missing is told below
        if before is not None:
            self._note_gap(expected, before)
        return is_known

    def _note_gap(self, first: int, before: int) -> None:
        if first < before:
            self._ready.append(GapRecord(first, before - 1))
            self.position = before - 1

    def _take(self, batch: WireBatch) -> None:
        self._ready.extend(batch.records if batch.is_readable else [GapRecord(batch.sequence, batch.sequence)])
        self.position = batch.sequence

    async def _ask(self, request: bytes) -> AsyncIterator[WireBatch]:
        if self._dealer is None:
            raise ClosedError("the client is not open, or was made without a replay_endpoint")
        async with self._asking:
            dealer = self._dealer
            is_answered = False
            try:
                async with asyncio.timeout(self._timeout_s):
                    await dealer.send_multipart((b"", request))
                while True:
                    async with asyncio.timeout(self._timeout_s):
                        frames = await dealer.recv_multipart()
                    if not frames[-1]:
                        is_answered = True
                        return
                    if (batch := _read(frames)) is None:
                        raise BrokenError(f"{self._replay_endpoint} answers no events: is a publisher's ROUTER there?")
                    yield batch
                    await self._turns.spend(0)
            except asyncio.CancelledError:
                if not self._was_closed():
                    raise
                raise ClosedError("the client was closed before the answer was complete") from None
            except TimeoutError:
                raise BrokenError(f"{self._replay_endpoint} did not answer in {self._timeout_s} s") from None
            finally:
                if not is_answered and self._context is not None:
                    # What is still to come must not be taken for the answer to the next request.
                    dealer.close()
                    self._connect_dealer()

    def _connect_dealer(self) -> None:
        if self._replay_endpoint is None or self._context is None:
            return
        self._dealer = open_dealer_socket(self._context, high_water_mark=self._high_water_mark)
        connect(self._dealer, self._replay_endpoint)


def _read(frames: Sequence[bytes]) -> WireBatch | None:
    """A message; one that cannot be read is one that was missed, and no reason to hear no more; nor is none at all."""
    try:
        *_, number, payload = frames
        sequence = unpack_sequence(number)
    except ValueError:
        logger.warning("a message of %d frames is none of a publisher of KV-cache events", len(frames))
        return None
    try:
        return decode(sequence, payload)
    except ArgumentError as error:
        logger.warning("%s", error)
        return WireBatch(sequence, 0.0, (), (), is_readable=False)


async def _nothing() -> AsyncIterator[WireBatch]:
    none: tuple[WireBatch, ...] = ()
    for batch in none:
        yield batch
