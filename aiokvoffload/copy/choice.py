"""From a configuration to the engine of a worker: what the device has, and what it does fastest.

Knows every engine by name; knows nothing of how they work.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch

from aiokvoffload.config import CopyConfig
from aiokvoffload.copy.arena import HostArena
from aiokvoffload.copy.auto_engine import AutoEngine
from aiokvoffload.copy.backends import make_backends
from aiokvoffload.copy.calibration import Engines, measure_costs
from aiokvoffload.copy.costs import CopyCosts, read_costs, write_costs
from aiokvoffload.copy.direct_engine import DirectEngine
from aiokvoffload.copy.driver_engines import DriverBatchEngine, DriverCopyEngine
from aiokvoffload.copy.engine import CopyEngine, RunEngine
from aiokvoffload.copy.host_engine import HostEngine
from aiokvoffload.copy.layout import KVCacheLayout
from aiokvoffload.copy.staged_engine import StagedEngine
from aiokvoffload.copy.torch_engine import TorchEngine, regions_of
from aiokvoffload.device.base import Device
from aiokvoffload.device.driver import CudaDriver
from aiokvoffload.errors import OffloadError

logger = logging.getLogger(__name__)

EngineMaker = Callable[[Device, KVCacheLayout, Sequence[HostArena]], CopyEngine]
"""Makes the engine of one worker, for its tensors and its slots."""

_known_costs: dict[str, CopyCosts] = {}
_known_costs_lock = threading.Lock()


def choose_engine(
    device: Device, layout: KVCacheLayout, arenas: Sequence[HostArena], config: CopyConfig | None = None
) -> CopyEngine:
    """The engine that `config` names, or the next best that there is; see `CopyConfig`."""
    config = config or CopyConfig()
    return _choose(_run_engine(device, layout, arenas, config), device, layout, arenas, config)


def _choose(
    runs: RunEngine, device: Device, layout: KVCacheLayout, arenas: Sequence[HostArena], config: CopyConfig
) -> CopyEngine:
    # The host's streams are threads, which a stage between would only keep busier.
    wants_stages = config.engine in ("staged", "direct") or (config.engine == "auto" and runs.name == "cuda-batch")
    if not wants_stages or not config.staging_bytes:
        return runs
    make_backend = make_backends(device, layout, programs=config.programs)
    # The driver would copy to and from memory that is not pinned, but wait for it.
    if make_backend is None or not all(arena.pinned_bytes for arena in arenas):
        return runs
    staged = StagedEngine(device, make_backend)
    direct = DirectEngine(staged)
    if config.engine != "auto":
        return staged if config.engine == "staged" else direct
    try:
        engines = Engines(runs, staged, direct)
        return AutoEngine(engines, costs_of(device, engines, config))
    except OffloadError as error:
        logger.warning("no staged copies, calibrating failed: %s", error)
        return runs


def choose_first(
    device: Device, layout: KVCacheLayout, arenas: Sequence[HostArena], config: CopyConfig
) -> tuple[CopyEngine, Callable[[], CopyEngine] | None]:
    """An engine that is there at once, and what makes a better one, if there is one.

    Kernels have to be compiled and copies timed for that, which takes a second.
    """
    runs = _run_engine(device, layout, arenas, config)
    choose = partial(_choose, runs, device, layout, arenas, config)
    if config.engine == "auto" and config.staging_bytes and runs.name == "cuda-batch":
        return runs, choose
    return choose(), None


def _run_engine(device: Device, layout: KVCacheLayout, arenas: Sequence[HostArena], config: CopyConfig) -> RunEngine:
    if config.engine == "torch":
        return TorchEngine(device, regions_of(layout, arenas))
    driver: CudaDriver | None = getattr(device, "driver", None)
    if driver is not None:
        return DriverBatchEngine(driver) if driver.has_batch_copy else DriverCopyEngine(driver)
    if device.torch_device.type == "cpu":
        return HostEngine(device)
    return TorchEngine(device, regions_of(layout, arenas))


def costs_of(device: Device, engines: Engines, config: CopyConfig) -> CopyCosts:
    """What is known of this device in this process or in `config.calibration_file`, else measured and kept in both.

    Raises:
        OffloadError: it cannot be measured.
    """
    name = torch.cuda.get_device_name(device.torch_device) if device.name == "cuda" else device.name
    path = None if config.calibration_file is None else Path(config.calibration_file)
    with _known_costs_lock:
        costs = _known_costs.get(name) or (None if path is None else read_costs(path, name))
        if costs is None:
            costs = measure_costs(device, engines, name=name, programs=config.programs)
            if path is not None:
                write_costs(path, costs)
        _known_costs[name] = costs
    return costs
