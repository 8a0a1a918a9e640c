"""What copies cost on this machine: measured in half a second, and kept.

Knows seconds and bytes; which engine they speak for is decided in `auto_engine`.
"""

import json
import logging
from dataclasses import asdict, dataclass
from pathlib import Path

from aiokvoffload.copy.direction import Direction

logger = logging.getLogger(__name__)

NAMES = ("store", "load")
SHORT_RUN_BYTES = 64 << 10
"""Below this a run costs the driver more, above it no less the longer it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectionCosts:
    """One direction.

    Attributes:
        bytes_per_s: of one long copy by DMA.
        short_run_s: what a run below `SHORT_RUN_BYTES` takes beyond its bytes.
        long_run_s: what a longer one does.
        host_run_s: of the submitting thread, in the driver, for each run.
        slot_run_s: what a run of `SHORT_RUN_BYTES` between the ring and slots takes beyond its bytes.
        kernel_bytes_per_s: of the direct kernel.
    """

    bytes_per_s: float
    short_run_s: float
    long_run_s: float
    host_run_s: float
    slot_run_s: float
    kernel_bytes_per_s: float

    def runs_s(self, count: int, size_bytes: int) -> float:
        """Seconds beyond their bytes that `count` runs of `size_bytes` together take."""
        return count * (self.short_run_s if size_bytes < count * SHORT_RUN_BYTES else self.long_run_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyCosts:
    """Both directions, on the device of this name."""

    device_name: str
    store: DirectionCosts
    load: DirectionCosts

    def of(self, direction: Direction) -> DirectionCosts:
        """Those of one direction."""
        return self.store if direction is Direction.STORE else self.load

    def to_json(self) -> str:
        """The record as one JSON object."""
        return json.dumps(asdict(self), indent=2)


def read_costs(path: Path, device_name: str) -> CopyCosts | None:
    """What was kept for this device; `None` if there is nothing, or nothing that can be read."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        store, load = (DirectionCosts(**{key: float(value) for key, value in record[name].items()}) for name in NAMES)
        costs = CopyCosts(device_name=record["device_name"], store=store, load=load)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        logger.warning("calibration_file %s cannot be used, measuring anew: %r", path, error)
        return None
    return costs if costs.device_name == device_name else None


def write_costs(path: Path, costs: CopyCosts) -> None:
    """Keep them; failing to is no reason not to copy."""
    try:
        path.write_text(costs.to_json() + "\n", encoding="utf-8")
    except OSError as error:
        logger.warning("calibration_file %s cannot be written: %s", path, error)
