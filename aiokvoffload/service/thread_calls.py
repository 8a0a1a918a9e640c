"""What an engine without a loop asks of a service in its thread, and what it is told: records, and their check."""

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from aiokvoffload.base import OffloadKey
from aiokvoffload.errors import ArgumentError, OffloadError
from aiokvoffload.service.results import LoadResult, StoreResult
from aiokvoffload.service.segments import Blocks, KeysByGroup


@dataclass(frozen=True, slots=True, eq=False)
class LookupCall:
    """How much of these chains can be served; answered by the same step. As `Request.lookup`."""

    req_id: str
    keys: Sequence[OffloadKey] | KeysByGroup


@dataclass(frozen=True, slots=True, eq=False)
class LoadCall:
    """Copy chunks into GPU blocks. As `Request.load`; `after` is what the step was given."""

    req_id: str
    keys: Sequence[OffloadKey]
    blocks: Blocks


@dataclass(frozen=True, slots=True, eq=False)
class StoreCall:
    """Copy chunks out of GPU blocks, which nobody writes to before `CallStage.RELEASED`. As `Request.store`."""

    req_id: str
    keys: Sequence[OffloadKey]
    blocks: Blocks


@dataclass(frozen=True, slots=True, eq=False)
class FinishCall:
    """The request is over; it ends when no copy touches its GPU blocks.

    Attributes:
        req_id: of the request.
        abort: start no further copies of it.
    """

    req_id: str
    abort: bool = False


ThreadCall = LookupCall | LoadCall | StoreCall | FinishCall


class CallStage(enum.Enum):
    """How far a call has come."""

    RELEASED = "released"
    """A store's GPU blocks may be reused; its bytes are still on their way."""
    ENDED = "ended"


@dataclass(frozen=True, slots=True, eq=False)
class CallOutcome:
    """One call has come to a stage.

    Attributes:
        call: the record that was given, itself.
        stage: which.
        result: at the end of a lookup, what `Request.lookup` returns; of a load or a store its result.
        error: why it was refused or given up; nothing has moved for a refused call.
    """

    call: ThreadCall
    stage: CallStage
    result: int | LoadResult | StoreResult | None = None
    error: OffloadError | None = None


def checked_calls(calls: Iterable[ThreadCall]) -> tuple[ThreadCall, ...]:
    """The calls of a step, which may come from a generator: that can be looked through only once.

    Raises:
        ArgumentError: they are not several calls, in order; one is none, or is of no request.
    """
    if isinstance(calls, set | frozenset) or not isinstance(calls, Iterable):
        raise ArgumentError(f"calls must be a sequence of calls, got {calls!r}")
    calls = tuple(calls)
    for index, call in enumerate(calls):
        if not isinstance(call, ThreadCall):
            raise ArgumentError(f"calls must be LookupCall, LoadCall, StoreCall or FinishCall, got {call!r}")
        if not isinstance(call.req_id, str) or not call.req_id:
            raise ArgumentError(f"calls[{index}].req_id must be a non-empty string, got {call.req_id!r}")
    return calls
