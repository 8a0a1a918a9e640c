import pytest
import torch

from aiokvoffload.cli.grown import wait_grown
from aiokvoffload.config import CPUOffloadingConfig
from aiokvoffload.cpu import spec as spec_module
from aiokvoffload.cpu.spec import CPUOffloadingSpec
from aiokvoffload.errors import ConfigError
from aiokvoffload.testing import PinGateDevice
from aiokvoffload.testing.memory import make_kv_caches

PAGE_BYTES = 4096


async def test_a_measurement_does_not_start_with_less_memory_than_was_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Fault 37."""
    device = PinGateDevice()
    monkeypatch.setattr(spec_module, "open_device", lambda _: device)
    config = CPUOffloadingConfig(cpu_bytes=8 * PAGE_BYTES, pin_piece_bytes=2 * PAGE_BYTES)
    device.allow(8)
    device.refuse_after(2)
    caches = make_kv_caches([torch.zeros((4, PAGE_BYTES), dtype=torch.uint8)])
    async with CPUOffloadingSpec(config).open(caches) as offload:
        with pytest.raises(ConfigError, match=r"only slots \(4,\): cuMemHostRegister"):
            await wait_grown(offload)
