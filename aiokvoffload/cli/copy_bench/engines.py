"""Every way of copying in one worker, of which one is in use at a time, so that all share its memory.

Knows the engines by name; measures nothing.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from aiokvoffload.config import CopyConfig
from aiokvoffload.copy.arena import HostArena
from aiokvoffload.copy.choice import choose_engine
from aiokvoffload.copy.direction import Direction
from aiokvoffload.copy.driver_engines import DriverBatchEngine
from aiokvoffload.copy.engine import Copies, CopyEngine, Lane
from aiokvoffload.copy.layout import KVCacheLayout
from aiokvoffload.copy.selection import Selection
from aiokvoffload.copy.staging import Staging
from aiokvoffload.device.base import Device

ONE_CALL = "one-call"


class OneCallEngine(DriverBatchEngine):
    """The baseline: all of a job in one driver call."""

    runs_per_step = 1 << 62


class SwitchedEngine(CopyEngine):
    """Plans with the engine that is switched on.

    Args:
        names: of the engines wanted.
        config: of all of them but for the name.

    Attributes:
        rows: all slots, shape (slots, bytes), once the worker has been made; to be let go of before it is closed.
    """

    def __init__(self, names: Sequence[str], config: CopyConfig) -> None:
        self.name = "none"
        self._names, self._config = tuple(names), config
        self._engines: dict[str, CopyEngine] = {}
        self._current: CopyEngine | None = None
        self._stager: CopyEngine | None = None
        self.rows: npt.NDArray[np.uint8] = np.empty((0, 0), dtype=np.uint8)

    def make(self, device: Device, layout: KVCacheLayout, arenas: Sequence[HostArena]) -> CopyEngine:
        """Make all of them; what a `CPUOffloadingWorker` calls."""
        self.rows = arenas[0].rows()
        driver = getattr(device, "driver", None)
        for name in self._names:
            if name == ONE_CALL and driver is not None:
                self._engines[name] = OneCallEngine(driver)
            else:
                known = name if name != ONE_CALL else "batched"
                self._engines[name] = choose_engine(device, layout, arenas, replace(self._config, engine=known))
        self._stager = choose_engine(device, layout, arenas, replace(self._config, engine="staged"))
        return self

    def switch(self, name: str) -> None:
        """Use this one from now on; nothing may be under way."""
        self._current = self._engines[name]
        self.name = self._current.name

    def open_staging(self, direction: Direction, size_bytes: int) -> Staging | None:
        """One for all engines."""
        return None if self._stager is None else self._stager.open_staging(direction, size_bytes)

    def plan(self, selection: Selection, lane: Lane) -> Copies:
        """By the engine in use."""
        engine = self._current or next(iter(self._engines.values()))
        return engine.plan(selection, lane)
