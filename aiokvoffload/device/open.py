"""From a device's name in the configuration to the device."""

import torch

from aiokvoffload.config import DEVICES
from aiokvoffload.device.base import Device
from aiokvoffload.device.cuda import AcceleratorDevice
from aiokvoffload.device.host import HostDevice
from aiokvoffload.errors import ConfigError


def open_device(name: str) -> Device:
    """Open `auto` (the accelerator that torch offers, else the host), `cuda` or `host`. The caller closes it.

    Raises:
        ConfigError: the name is unknown, or there is no such device.
    """
    if name not in DEVICES:
        raise ConfigError(f"device must be one of {', '.join(DEVICES)}, got {name!r}")
    if name == "host":
        return HostDevice()
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if torch.cuda.is_available():
        accelerator = torch.device("cuda")
    elif name == "cuda":
        raise ConfigError("device must be one that torch can use, got 'cuda' and torch finds no CUDA device")
    if accelerator is None:
        return HostDevice()
    try:
        return AcceleratorDevice(accelerator)
    except OSError as error:
        raise ConfigError(f"device {name!r} cannot be opened: {error}") from error
