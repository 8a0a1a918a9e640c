"""A call that blocks, on a daemon thread of its own: one that hangs keeps neither the loop nor the process."""

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from typing import TypeVar

Result = TypeVar("Result")


async def in_thread(name: str, call: Callable[[], Result], *, undo: Callable[[Result], None]) -> Result:
    """The result of `call()`; if nobody is left to take it, `undo(result)` is called, on a thread too.

    Raises:
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

    threading.Thread(target=run, name=name, daemon=True).start()
    try:
        return await asyncio.shield(ending)
    except asyncio.CancelledError:
        ending.add_done_callback(partial(_undo_later, undo))
        raise


def _post(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> bool:
    try:
        loop.call_soon_threadsafe(call)
    except RuntimeError:  # the loop has closed (fault 34)
        return False
    return True


def _undo_later(undo: Callable[[Result], None], ending: "asyncio.Future[Result]") -> None:
    if not ending.cancelled() and ending.exception() is None:
        threading.Thread(target=undo, args=(ending.result(),), name="aiokvoffload-disk-undo", daemon=True).start()
