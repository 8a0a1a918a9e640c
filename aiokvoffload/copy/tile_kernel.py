"""The tile kernel, compiled once for each shape and launched without Triton's own launcher.

Triton is optional, and so is a compiler for it: without, there is no staged engine.
"""

import importlib
import importlib.util
import logging
from dataclasses import dataclass
from typing import Any

import torch

from aiokvoffload.copy.tiles import KernelShape
from aiokvoffload.device.quick_driver import Function

logger = logging.getLogger(__name__)

_WIDE, _NARROW = 1 << 40, 2
"""Stand-ins for arguments of 64 and of 32 bits: Triton derives an argument's type from its value."""


@dataclass(frozen=True, slots=True)
class TileKernel:
    """One compiled kernel.

    Attributes:
        shape: what it was compiled for.
        function: to be launched.
        compiled: keeps it loaded.
    """

    shape: KernelShape
    function: Function
    compiled: object


def has_triton() -> bool:
    """Whether Triton is installed."""
    return importlib.util.find_spec("triton") is not None


def compile_kernel(shape: KernelShape, torch_device: torch.device) -> TileKernel | None:
    """Compile and load the kernel on `torch_device`; `None`, and a line in the log, where that is not possible.

    The first time on a machine it takes a second or so, later Triton finds it in its cache.
    """
    if not has_triton():
        return None
    try:
        kernels: Any = importlib.import_module("aiokvoffload.copy.kernels")
        with torch.cuda.device(torch_device):
            arguments = (_WIDE, _WIDE, _NARROW, _NARROW, _NARROW, _NARROW)
            options = {"num_warps": kernels.NUM_WARPS, "enable_fp_fusion": False}
            compiled = kernels.move_tiles.warmup(*arguments, *shape, grid=(1,), **options)
            compiled._init_handles()
        metadata = compiled.metadata
        function = Function(int(compiled.function), int(metadata.num_warps), int(metadata.shared))
    except Exception as error:  # noqa: BLE001 - a compiler that fails, in whichever way, is no reason not to copy
        logger.warning("no staged copies, the kernel cannot be compiled: %r", error)
        return None
    return TileKernel(shape, function, compiled)
