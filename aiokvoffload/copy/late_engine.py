"""An engine that is made while another one copies.

Knows two steps: compiling, on a thread of its own, and calibrating, when its owner finds time. Knows no engine.
"""

import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import NoReturn

from aiokvoffload.copy.choice import Calibration
from aiokvoffload.copy.engine import CopyEngine
from aiokvoffload.errors import InternalError

logger = logging.getLogger(__name__)

JOIN_S = 30.0
"""How long to wait for a compiler; it takes two seconds."""


class LateEngine:
    """Made in two steps, of which the owner does the second.

    Args:
        compile_kernels: the first.
        use: called with the engine.
    """

    def __init__(self, compile_kernels: Callable[[], Calibration], use: Callable[[CopyEngine], None]) -> None:
        self._compile, self._use = compile_kernels, use
        self._calibrate: Calibration = partial(_fail, InternalError("the thread that compiles kernels has ended"))
        self._thread = threading.Thread(target=self._run, name="aiokvoffload-compiler", daemon=True)

    def start(self) -> None:
        """Begin the first step."""
        self._thread.start()

    def ready(self) -> bool:
        """Whether the first step is over."""
        return not self._thread.is_alive()

    def finish(self) -> None:
        """Wait for the first step, and do the second; if one fails, the other engine goes on copying."""
        self._thread.join()
        try:
            self._use(self._calibrate())
        except Exception as error:  # noqa: BLE001 - a compiler can fail in any way, and copies go on without
            logger.warning("copies go on without stages: %r", error)

    def join(self) -> None:
        """Wait for the first step only."""
        if self._thread.ident is not None:
            self._thread.join(JOIN_S)

    def _run(self) -> None:
        try:
            self._calibrate = self._compile()
        except Exception as error:  # noqa: BLE001 - raised again where it is waited for
            self._calibrate = partial(_fail, error)

    def __repr__(self) -> str:
        return f"LateEngine({'ready' if self.ready() else 'compiling'})"


def _fail(error: Exception) -> NoReturn:
    raise error
