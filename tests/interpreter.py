"""Whether a call gives up the interpreter, so that another thread may keep it for 5 ms."""

import gc
import sys
import threading
import time
from collections.abc import Callable

CALLS = 3000
"""Of those that give it up for a moment, one in thirty loses it, where another core is idle."""
NEVER_S = 60.0


def turns_given_away(call: Callable[[], object], calls: int = CALLS) -> int:
    """How often another thread got a turn while `call` was made so many times; 0 if none gave it one."""
    turns, ended, begun = 0, False, threading.Event()

    def take_turns() -> None:
        nonlocal turns
        while not ended:
            turns += 1
            begun.set()
            time.sleep(0)  # asks for the interpreter again at once

    gc.collect()
    gc.disable()  # what others left may give it up as it goes
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(NEVER_S)  # nobody takes it: it must be given
    thread = threading.Thread(target=take_turns)
    thread.start()
    try:
        begun.wait()
        call()
        before = turns
        for _ in range(calls):
            call()
        return turns - before
    finally:
        ended = True
        sys.setswitchinterval(interval_s)
        gc.enable()
        thread.join()
