"""Chains as runs of slots that were given in one go. Knows nothing of an order among chains, or of who may leave.

A chain is tuples of tuples: cutting an end off costs a few numbers, and the garbage collector, once it has gone through
one, leaves it alone. Through the slots and keys of long runs it never goes: they are arrays.
"""

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from aiokvoffload.base import OffloadKey
from aiokvoffload.base.untracked import object_array
from aiokvoffload.errors import InternalError

T = TypeVar("T")

Victims = tuple[list[OffloadKey], list[int]]
"""Keys that leave, the first to go first, and the slot of each."""

_Objects = npt.NDArray[np.object_]

Run = tuple[tuple[int, ...] | _Objects, tuple[OffloadKey, ...] | _Objects, int, int, int]
"""Slots and their keys, head first; the first of them that is still here and the one after the last; a stamp."""

Chain = tuple[Run, ...]
"""Runs, the head's in front."""

FEW = 64
"""Runs of the same stamp up to this length become one, so that a chain which grows key by key takes no more memory.
The slots and keys of longer ones are arrays."""


def extended(chain: Chain, slots: Sequence[int], keys: Sequence[OffloadKey], stamp: int) -> Chain:
    """The chain with these behind it; runs become one with shorter ones only, so that each is copied seldom."""
    while chain:
        last_slots, last_keys, begin, end, last_stamp = chain[-1]
        if last_stamp != stamp or end - begin > len(slots) or end - begin + len(slots) > FEW:
            break
        slots, keys = (*part(last_slots, begin, end), *slots), (*part(last_keys, begin, end), *keys)
        chain = chain[:-1]
    return (*chain, run_of(slots, keys, stamp))


def run_of(slots: Sequence[int], keys: Sequence[OffloadKey], stamp: int) -> Run:
    """A run of its own."""
    count = len(slots)
    if count > FEW:
        return object_array(slots), object_array(keys), 0, count, stamp
    return tuple(slots), tuple(keys), 0, count, stamp


def part(items: tuple[T, ...] | _Objects, begin: int, end: int) -> tuple[T, ...]:
    """Some of a run's slots or keys."""
    some = items[begin:end]
    return some if isinstance(some, tuple) else tuple(some.tolist())


def without_tail(chain: Chain, count: int) -> tuple[Chain, list[OffloadKey], list[int]]:
    """The chain without its last `count` slots, or without any if it has no more; and those, the last one first."""
    keys: list[OffloadKey] = []
    slots: list[int] = []
    return cut_tail(chain, count, keys, slots), keys, slots


def cut_tail(chain: Chain, count: int, keys: list[OffloadKey], slots: list[int]) -> Chain:
    """The same, behind what is in `keys` and `slots` already; returns the chain without them."""
    left = len(chain)
    while left and count > 0:
        left -= 1
        run = chain[left]
        run_slots, run_keys, begin, end, _ = run
        stop = end - count if end - begin > count else begin
        # Counted from behind, since a slice down to the first cannot name the place before it.
        last, before = end - len(run_slots) - 1, stop - len(run_slots) - 1
        # Here and not by `part`: requests that evict would make four calls more.
        left_slots, left_keys = run_slots[last:before:-1], run_keys[last:before:-1]
        slots += left_slots if isinstance(left_slots, tuple) else left_slots.tolist()
        keys += left_keys if isinstance(left_keys, tuple) else left_keys.tolist()
        if stop > begin:
            return (*chain[:left], _piece(run, begin, stop))
        count -= end - begin
    return chain[:left]


def without(chain: Chain, slots: tuple[int, ...], first: int) -> tuple[Chain, int]:
    """The chain without `slots[first]`, which is here, and as many that follow in both; and where that ends."""
    for index, run in enumerate(chain):
        run_slots, _, begin, end, _ = run
        at = begin if run_slots[begin] == slots[first] else find(run, slots[first])
        if at < end:
            wanted = slots[first:] if end - at > len(slots) - first else slots[first : first + end - at]
            here = part(run_slots, at, at + len(wanted))
            stop = at + (len(wanted) if here == wanted else count_same(here, wanted))
            head = (_piece(run, begin, at),) if begin < at else ()
            tail = (_piece(run, stop, end),) if stop < end else ()
            return (*chain[:index], *head, *tail, *chain[index + 1 :]), first + stop - at
    raise InternalError(f"slot {slots[first]} is taken out of a chain that it is not in")


def count_same(one: Sequence[Any], other: Sequence[Any]) -> int:
    """How many leading items are the same; `other` is of the same kind, and no longer."""
    one = one[: len(other)]
    if one == other:
        return len(one)
    return next(index for index, pair in enumerate(zip(one, other, strict=True)) if pair[0] != pair[1])


def from_tail(chain: Chain) -> Iterator[tuple[int, OffloadKey, int]]:
    """Slots, keys and stamps, the last one first."""
    for slots, keys, begin, end, stamp in reversed(chain):
        for index in range(end - 1, begin - 1, -1):
            yield slots[index], keys[index], stamp


def find(run: Run, slot: int) -> int:
    """Where the slot stands; the run's end if it does not, or not any more."""
    slots, _, begin, end, _ = run
    try:
        if isinstance(slots, tuple):
            return slots.index(slot, begin, end)
        return begin + part(slots, begin, end).index(slot)
    except ValueError:
        return end


def _piece(run: Run, begin: int, end: int) -> Run:
    """That part of a run; what is not in it is let go of once it is more than half of what is remembered."""
    slots, keys, _, _, stamp = run
    if 2 * (end - begin) < len(slots):
        return run_of(part(slots, begin, end), part(keys, begin, end), stamp)
    return slots, keys, begin, end, stamp
