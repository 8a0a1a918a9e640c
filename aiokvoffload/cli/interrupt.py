"""What Ctrl-C does to the command: one line on standard error and status 130, whenever it comes.

Knows signals; imports next to nothing, since it must be there before the slow imports begin.
"""

import os
import signal
import sys
from typing import Any

INTERRUPTED_STATUS = 130
INTERRUPTED_LINE = "aiokvoffload: interrupted"
_SHOW_CURSOR = "\r\x1b[?25h"


def leave_at_once(*_: object) -> None:
    """As a signal handler: end the process here.

    An exception would surface wherever the interpreter happens to be: inside the import of an extension, which wraps
    it, or inside a callback of the loop, which takes it for a fault of its own.
    """
    # A progress bar hides the cursor.
    line = f"{_SHOW_CURSOR if sys.stderr.isatty() else ''}{INTERRUPTED_LINE}\n"
    os.write(sys.stderr.fileno(), line.encode())
    os._exit(INTERRUPTED_STATUS)


def take_over(handler: Any) -> None:
    """Handle Ctrl-C with `handler`, unless whoever started the process had it ignored."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, handler)
