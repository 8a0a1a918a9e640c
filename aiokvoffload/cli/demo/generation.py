"""A request from the outside: an answer to iterate over, which is aborted when it is left. Knows no engine."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from aiokvoffload.errors import ClosedError


@dataclass(slots=True)
class RequestFigures:
    """What became of one request.

    Attributes:
        prompt_tokens: of its prompt.
        gpu_tokens: of them, those that GPU memory still held.
        tier_tokens: of them, those that were loaded, by the tier that they came from.
        computed_tokens: of them, the others.
        first_token_s: seconds from its arrival to its first token; 0 before that.
        answer_tokens: of its answer, so far.
    """

    prompt_tokens: int
    gpu_tokens: int = 0
    tier_tokens: dict[str, int] = field(default_factory=dict)
    computed_tokens: int = 0
    first_token_s: float = 0.0
    answer_tokens: int = 0


class Generation:
    """One request: an async iterator of its answer's tokens, and a context that aborts it when it is left early."""

    def __init__(self, req_id: str, prompt: Sequence[int], *, max_tokens: int, stop: frozenset[int]) -> None:
        self.req_id = req_id
        self.prompt = list(prompt)
        self.max_tokens = max_tokens
        self.stop = stop
        self.figures = RequestFigures(len(prompt))
        self.task: asyncio.Task[None] | None = None
        self._arrived_s = time.perf_counter()
        self._tokens: asyncio.Queue[int | None] = asyncio.Queue()  # holds max_tokens at most

    def emit(self, token: int) -> None:
        """The next token of the answer."""
        if not self.figures.first_token_s:
            self.figures.first_token_s = time.perf_counter() - self._arrived_s
        self.figures.answer_tokens += 1
        self._tokens.put_nowait(token)

    def end(self) -> None:
        """No token follows."""
        self._tokens.put_nowait(None)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> int:
        if (token := await self._tokens.get()) is not None:
            return token
        self._tokens.put_nowait(None)  # asked again, it ends again
        if self.task is None or self.task.cancelled():
            raise ClosedError(f"{self.req_id}: it was aborted")
        if (error := self.task.exception()) is not None:
            raise error
        raise StopAsyncIteration

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.task is not None:
            self.task.cancel()
            await asyncio.wait([self.task])
            if not self.task.cancelled():
                self.task.exception()  # seen, by whoever iterated or left before it was raised

    def __repr__(self) -> str:
        return f"<Generation {self.req_id!r}: {self.figures}>"
