from pathlib import Path

import pytest

from aiokvoffload.device.cuda import _node_of_pci_device
from aiokvoffload.device.host import HostDevice


@pytest.mark.parametrize(("text", "node"), [("1\n", 1), ("-1\n", None), ("", None)])
def test_the_kernel_tells_the_node_of_a_pci_device(text: str, node: int | None, tmp_path: Path) -> None:
    (tmp_path / "numa_node").write_text(text)
    assert _node_of_pci_device(tmp_path) == node


def test_a_device_the_kernel_does_not_list_has_no_node(tmp_path: Path) -> None:
    assert _node_of_pci_device(tmp_path / "0000:17:00.0") is None
    device = HostDevice()
    assert device.numa_node() is None
    device.close()
