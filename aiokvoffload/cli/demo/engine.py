"""An inference engine in the order in which a request meets it; everything of offloading is in this file.

Look the prompt up, load what a tier has, let the GPU wait for it, compute the rest piece by piece, store each block as
it fills, give the blocks back when the library says that nobody touches them. Knows requests and their order; tensors
are in `model`, block ids in `pages`, turns on the device in `batcher`.
"""

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import NamedTuple, Self

from aiokvoffload.base import OffloadKey
from aiokvoffload.cli.demo.batcher import Batcher, BatcherStatistics
from aiokvoffload.cli.demo.generation import Generation
from aiokvoffload.cli.demo.model import PagedModel
from aiokvoffload.cli.demo.pages import Lease, PagePool, PagePoolStatistics, chain_keys
from aiokvoffload.config import require_positive
from aiokvoffload.device import Device
from aiokvoffload.errors import ArgumentError, BusyError, ClosedError, TransferError
from aiokvoffload.service import Handle, LoadResult, OffloadingService, Request


class Hit(NamedTuple):
    """What can be had instead of computed, in tokens from the prompt's start: in GPU memory, and from any tier."""

    prompt_tokens: int
    gpu_tokens: int
    tier_tokens: int


def load_always(_hit: Hit) -> bool:
    """Whatever it costs."""
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """How the engine computes.

    Attributes:
        piece_tokens: of a prompt that are computed in one step; a multiple of the model's block.
        max_rows: answers that one step continues, at most.
        exact: compute in shapes that depend on nothing but a token's position, so that a block's bytes are a function
            of the tokens up to its end, whatever was cached. Hits are then used in whole pieces, pieces are padded,
            and blocks of answers are not kept, because a prefill would give them other last bits. Without it every
            block of a hit is used, nothing is padded, and answers are kept.
        max_requests: open at a time; one more is refused with `BusyError`.
        worth_loading: whether a hit is to be loaded rather than computed; `costs.ServeCosts.decide` makes one of what
            was measured.

    Raises:
        ConfigError: a number is not positive.
    """

    piece_tokens: int = 64
    max_rows: int = 8
    exact: bool = True
    max_requests: int = 1024
    worth_loading: Callable[[Hit], bool] = load_always

    def __post_init__(self) -> None:
        require_positive(self, "piece_tokens", "max_rows", "max_requests")


@dataclass(frozen=True, slots=True)
class EngineStatistics:
    """Requests open now and begun so far, and what the parts say of themselves."""

    open_requests: int
    requests: int
    pages: PagePoolStatistics
    batcher: BatcherStatistics


@dataclass(slots=True, eq=False)
class _Sequence:
    """A request that has its blocks.

    Attributes:
        ready: leading blocks that the model may read, as far as is known.
        sources: of those that were loaded, the tiers that they came from.
    """

    generation: Generation
    keys: list[OffloadKey]
    lease: Lease
    door: Request | None
    ready: int = 0
    sources: tuple[tuple[str, int], ...] = ()

    def count(self, block_tokens: int) -> None:
        """Say in the request's figures where its prompt came from."""
        figures = self.generation.figures
        figures.gpu_tokens = self.lease.num_cached * block_tokens
        figures.tier_tokens = {tier: blocks * block_tokens for tier, blocks in self.sources}
        figures.computed_tokens = figures.prompt_tokens - self.ready * block_tokens


class Engine:
    """Serves prompts; to be entered with `async with`. Leaving aborts what is open.

    Args:
        model: with its pages, which are those that `offload` was opened with.
        config: how it computes.
        offload: the open service; `None` serves from GPU memory alone.
        device: where the model runs; by default the service's.

    Raises:
        ArgumentError: a piece is not whole blocks, decode steps have no fixed width though it is to be exact, or there
            is neither service nor device.
    """

    def __init__(
        self,
        model: PagedModel,
        config: EngineConfig,
        *,
        offload: OffloadingService | None = None,
        device: Device | None = None,
    ) -> None:
        if config.piece_tokens % model.block_tokens:
            raise ArgumentError(
                f"piece_tokens must be a multiple of a block's {model.block_tokens}, got {config.piece_tokens}"
            )
        if config.exact and (model.decode_rows or 0) < config.max_rows:
            raise ArgumentError(
                f"with exact, the model's decode_rows must be at least max_rows = {config.max_rows}, "
                f"got {model.decode_rows}"
            )
        if device is None:
            if offload is None:
                raise ArgumentError("device must be given where no service is")
            device = offload.device
        self.config = config
        self._block_tokens = model.block_tokens
        self._unit = config.piece_tokens // model.block_tokens if config.exact else 1
        self._offload = offload
        self._batcher = Batcher(model, device, max_rows=config.max_rows)
        self.pages = PagePool(model.num_blocks, unit=self._unit)
        self._numbers = itertools.count()
        self._requests = 0
        self._open: dict[asyncio.Task[None], Generation] = {}
        self._running: asyncio.Task[None] | None = None

    def generate(self, prompt: Sequence[int], *, max_tokens: int, stop: Sequence[int] = ()) -> Generation:
        """Begin to answer, greedily: `async with engine.generate(...) as answer: async for token in answer: ...`.

        Args:
            prompt: token ids, at least one.
            max_tokens: most tokens of the answer.
            stop: tokens that end it; the one that does is not part of it.

        Raises:
            ArgumentError: an argument is out of range, or they need more blocks than there are.
            BusyError: too many requests are open.
            ClosedError: the engine is not open.
        """
        if not self.is_open:
            raise ClosedError("generate: the engine is not open; use it inside `async with`")
        if not prompt or max_tokens < 1:
            raise ArgumentError(f"prompt and answer must have a token at least, got {len(prompt)} and {max_tokens}")
        if self._num_blocks(len(prompt) + max_tokens) > self.pages.num_blocks:
            most = self.pages.num_blocks * self._block_tokens
            raise ArgumentError(
                f"prompt and answer must fit the {most} tokens of KV that GPU memory has room for, got a prompt of "
                f"{len(prompt)} and max_tokens of {max_tokens}"
            )
        if len(self._open) >= self.config.max_requests:
            raise BusyError(f"generate: {len(self._open)} requests are open, the limit is {self.config.max_requests}")
        name = f"request-{next(self._numbers)}"
        generation = Generation(name, prompt, max_tokens=max_tokens, stop=frozenset(stop))
        self._requests += 1
        generation.task = asyncio.create_task(self._serve(generation), name=f"aiokvoffload-{name}")
        self._open[generation.task] = generation
        generation.task.add_done_callback(self._ended)
        return generation

    def abort(self) -> None:
        """End all requests that are open now; whoever waits for their tokens gets a `ClosedError`."""
        for task in (*self._open,):
            task.cancel()

    @property
    def is_open(self) -> bool:
        """Whether it takes requests."""
        return self._running is not None and not self._running.done()

    async def _serve(self, generation: Generation) -> None:
        keys = await asyncio.to_thread(chain_keys, generation.prompt, self._block_tokens)
        if self._offload is None:
            await self._answer(generation, keys, None)
            return
        # Leaving waits until no copy touches the request's blocks, however it is left.
        async with self._offload.request(generation.req_id) as door:
            await self._answer(generation, keys, door)

    async def _answer(self, generation: Generation, keys: list[OffloadKey], door: Request | None) -> None:
        # The last token is always computed: its output is the first token of the answer.
        usable = self._whole_units((len(generation.prompt) - 1) // self._block_tokens)
        num_blocks = self._num_blocks(len(generation.prompt) + generation.max_tokens)
        lease = await self.pages.lease(keys[:usable], num_blocks)
        with contextlib.ExitStack() as at_end:
            if door is None:
                at_end.callback(lease.release)
            else:
                door.on_released(lease.release)
            sequence = _Sequence(generation, keys, lease, door, ready=lease.num_cached)
            token = await self._prefill(sequence, self._load(sequence, keys[:usable]))
            await self._decode(sequence, token)

    def _load(self, sequence: "_Sequence", keys: list[OffloadKey]) -> Handle[LoadResult] | None:
        """Begin to load what a tier has beyond what GPU memory has; `None` if that is nothing."""
        lease, door = sequence.lease, sequence.door
        if door is None:
            return None
        door.touch(keys[: lease.num_cached])  # used again, so that their copies below stay
        sequence.ready = hits = max(lease.num_cached, self._whole_units(door.lookup(keys)))
        tokens = (len(sequence.generation.prompt), lease.num_cached * self._block_tokens, hits * self._block_tokens)
        if hits > lease.num_cached and self.config.worth_loading(Hit(*tokens)):
            wanted = slice(lease.num_cached, hits)
            with contextlib.suppress(BusyError):  # what is not loaded is computed
                return door.load(keys[wanted], lease.block_ids[wanted], after=self._batcher.stream)
        sequence.ready = lease.num_cached
        return None

    async def _fence(self, sequence: "_Sequence", load: Handle[LoadResult]) -> None:
        """Have the model wait for the load; fewer blocks are ready than were promised if some were evicted (I3)."""
        if len(self._open) > 1:
            await load  # the others' steps are in the same stream: a fence at once would make them wait as well
        try:
            await load.fence(self._batcher.stream)
        except TransferError:
            await self._settle(sequence, load)

    async def _settle(self, sequence: "_Sequence", load: Handle[LoadResult]) -> bool:
        """Now that the load has ended: whether every promised block arrived."""
        promised, result = sequence.ready, await load
        sequence.ready = self._whole_units(sequence.lease.num_cached + result.served)
        sequence.sources = result.sources
        return sequence.ready == promised

    async def _prefill(self, sequence: "_Sequence", load: Handle[LoadResult] | None) -> int:
        """Compute, piece by piece, what is nowhere; returns the answer's first token."""
        if load is not None:
            await self._fence(sequence, load)
        prompt, lease, piece = sequence.generation.prompt, sequence.lease, self.config.piece_tokens
        start, token = sequence.ready * self._block_tokens, 0
        while start < len(prompt):
            end = min(start - start % piece + piece, len(prompt))
            width = piece if self.config.exact else end - start
            token = await self._batcher.prefill(lease, prompt[start:end], start=start, width=width)
            if load is not None:
                # This step began when the copies had ended, so it is known by now whether they all succeeded.
                all_arrived, load = await self._settle(sequence, load), None
                self.pages.publish(sequence.keys[: sequence.ready], lease.block_ids[: sequence.ready])
                if not all_arrived:
                    start = sequence.ready * self._block_tokens
                    continue  # what was computed saw blocks that never came
            self._keep(sequence, start // self._block_tokens, end // self._block_tokens)
            start = end
        sequence.count(self._block_tokens)
        return token

    async def _decode(self, sequence: "_Sequence", token: int) -> None:
        """Continue the answer, token by token, from its first one."""
        generation, written = sequence.generation, [*sequence.generation.prompt]
        for remaining in reversed(range(generation.max_tokens)):
            if token in generation.stop:
                return
            generation.emit(token)
            if remaining:
                written.append(token)
                token = await self._batcher.decode(sequence.lease, token, len(written) - 1)
                self._keep_answer(sequence, written)

    def _keep(self, sequence: "_Sequence", first: int, end: int) -> None:
        """These blocks are computed: they can be found from now on, in GPU memory and soon below it."""
        keys, block_ids = sequence.keys[first:end], sequence.lease.block_ids[first:end]
        self.pages.publish(keys, block_ids)
        if sequence.door is not None and keys:
            with contextlib.suppress(BusyError):  # what is not kept is computed again
                # Nobody writes to a filled block while it is leased, and it is leased until the copies have ended.
                sequence.door.store(keys, block_ids, after=self._batcher.stream, protect_source=False)

    def _keep_answer(self, sequence: "_Sequence", written: list[int]) -> None:
        """If the answer has just filled a block, keep that too."""
        if self.config.exact or len(written) % self._block_tokens:
            return
        block, keys = len(written) // self._block_tokens - 1, sequence.keys
        keys += chain_keys(
            written[-self._block_tokens :], self._block_tokens, parent=keys[block - 1] if block else None
        )
        self._keep(sequence, block, block + 1)

    def _whole_units(self, blocks: int) -> int:
        return blocks - blocks % self._unit

    def _num_blocks(self, tokens: int) -> int:
        return -(-tokens // self._block_tokens)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._open.pop(task).end()

    async def __aenter__(self) -> Self:
        if self._running is not None:
            raise ClosedError("an engine is opened once")
        self._running = asyncio.create_task(self._batcher.run(), name="aiokvoffload-batcher")
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._running is None:
            return
        self.abort()
        if self._open:
            await asyncio.wait([*self._open])
        self._running.cancel()
        await asyncio.wait([self._running])
        await self._batcher.aclose()

    def statistics(self) -> EngineStatistics:
        """Counts as they are now."""
        return EngineStatistics(len(self._open), self._requests, self.pages.statistics(), self._batcher.statistics())

    def __repr__(self) -> str:
        return f"<Engine {len(self._open)} requests open, {self._requests} begun>"
