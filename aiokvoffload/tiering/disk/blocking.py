"""A call that blocks, on a daemon thread of its own: one that hangs keeps neither the loop nor the process."""

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from aiokvoffload.errors import TierError

Result = TypeVar("Result")


def start_thread(name: str, run: Callable[[], object], *, owner: str) -> None:
    """Start a daemon thread.

    Args:
        name: of the thread.
        run: what it does.
        owner: whose it is, for people.

    Raises:
        TierError: the system gives no more threads.
    """
    try:
        threading.Thread(target=run, name=name, daemon=True).start()
    except RuntimeError as error:
        raise TierError(
            f"{owner}: thread {name} cannot be started: {error}; lower DiskConfig.threads, or raise the limit of "
            "threads (ulimit -u, or pids.max of the control group)"
        ) from error


async def in_thread(name: str, call: Callable[[], Result], *, undo: Callable[[Result], None], owner: str) -> Result:
    """The result of `call()`; if nobody is left to take it, `undo(result)` is called, on a thread too.

    Raises:
        TierError: the system gives no thread.
        BaseException: what the call raised.
    """
    loop = asyncio.get_running_loop()
    ending: asyncio.Future[Result] = loop.create_future()

    def run() -> None:
        try:
            result = call()
        except BaseException as error:  # noqa: BLE001 - it belongs to whoever awaits
            _post(loop, partial(ending.set_exception, error))
            return
        if not _post(loop, partial(ending.set_result, result)):
            undo(result)

    start_thread(name, run, owner=owner)
    try:
        return await asyncio.shield(ending)
    except asyncio.CancelledError:
        ending.add_done_callback(partial(_undo_later, undo, owner))
        raise


def _post(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> bool:
    try:
        loop.call_soon_threadsafe(call)
    except RuntimeError:  # the loop has closed (fault 34)
        return False
    return True


def _undo_later(undo: Callable[[Result], None], owner: str, ending: "asyncio.Future[Result]") -> None:
    if ending.cancelled() or ending.exception() is not None:
        return
    undo_it = partial(undo, ending.result())
    try:
        start_thread("aiokvoffload-disk-undo", undo_it, owner=owner)
    except TierError:  # better here, for all that it blocks, than never
        undo_it()
