"""What the kernel does with memory that is mapped, advised, shared and given back."""

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from aiokvoffload.config import HostMemory
from aiokvoffload.copy import libc
from aiokvoffload.copy.mapping import HostMapping
from aiokvoffload.errors import ConfigError

PAGE_BYTES = 4096
SIZE_BYTES = 8 * PAGE_BYTES


def contents(memory: HostMapping) -> npt.NDArray[np.uint8]:
    buffer: Any = (ctypes.c_uint8 * memory.size_bytes).from_address(memory.address)
    return np.frombuffer(buffer, dtype=np.uint8)


def test_another_process_maps_a_file_in_memory_and_reads_and_writes_it() -> None:
    memory = HostMapping(SIZE_BYTES, HostMemory.MEMFD)
    assert memory.descriptor is not None
    contents(memory)[PAGE_BYTES] = 77
    program = (
        "import mmap, sys\n"
        "with mmap.mmap(int(sys.argv[1]), int(sys.argv[2])) as pool:\n"
        "    print(len(pool), pool[4096])\n"
        "    pool[5] = 55\n"
    )
    command = [sys.executable, "-c", program, str(memory.descriptor), str(SIZE_BYTES)]
    child = subprocess.run(command, pass_fds=[memory.descriptor], capture_output=True, check=True, text=True)  # noqa: S603
    assert (child.stdout.split(), contents(memory)[5]) == ([str(SIZE_BYTES), "77"], 55)
    memory.close()


@pytest.mark.parametrize("kind", HostMemory)
def test_what_is_given_back_has_no_pages_any_more_and_the_rest_stays(kind: HostMemory) -> None:
    memory = HostMapping(SIZE_BYTES, kind)
    contents(memory)[:] = 5
    memory.give_back(3 * PAGE_BYTES)
    assert contents(memory).reshape(8, PAGE_BYTES).max(axis=1).tolist() == [5, 5, 5, 0, 0, 0, 0, 0]
    memory.give_back(SIZE_BYTES)
    memory.close()


def test_a_file_in_memory_has_no_name_and_its_descriptor_goes_with_it() -> None:
    """Fault 36: a crash leaves nothing, since there is nothing that another process could find."""
    memory = HostMapping(SIZE_BYTES, HostMemory.MEMFD)
    descriptor = memory.descriptor
    assert descriptor is not None
    file = os.fstat(descriptor)
    assert (file.st_size, file.st_nlink) == (SIZE_BYTES, 0)
    memory.close()
    with pytest.raises(OSError, match="descriptor"):
        os.fstat(descriptor)


def test_abandoned_memory_stays_mapped_and_keeps_no_descriptor() -> None:
    """I2."""
    memory = HostMapping(SIZE_BYTES, HostMemory.MEMFD)
    memory.abandon()
    contents(memory)[:] = 1
    assert memory.descriptor is None


@pytest.mark.parametrize("kind", HostMemory)
@pytest.mark.parametrize("size_bytes", [1 << 62, (1 << 64) + 4096])
def test_too_much_is_a_clear_error_and_leaves_nothing(kind: HostMemory, size_bytes: int) -> None:
    with pytest.raises(ConfigError, match=f"cannot map {size_bytes} bytes of CPU memory: "):
        HostMapping(size_bytes, kind)


def refuse(*_: object) -> None:
    raise OSError(1, "not permitted")


@pytest.mark.parametrize("call", ["advise", "prefer_node"])
def test_advice_that_the_kernel_does_not_take_is_no_error(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sandboxes refuse mbind(2), and not every kernel has huge pages."""
    monkeypatch.setattr(libc, call, refuse)
    memory = HostMapping(SIZE_BYTES, HostMemory.ANONYMOUS, numa_node=0)
    memory.give_back(0)
    memory.close()


def test_the_node_of_the_device_is_asked_for_before_there_are_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int, int]] = []
    note: Callable[..., None] = lambda *arguments: asked.append(arguments)  # noqa: E731
    monkeypatch.setattr(libc, "prefer_node", note)
    memory = HostMapping(SIZE_BYTES, HostMemory.ANONYMOUS, numa_node=3)
    HostMapping(SIZE_BYTES, HostMemory.ANONYMOUS).close()
    assert asked == [(memory.address, SIZE_BYTES, 3)]
    memory.close()


def test_a_forked_child_does_not_share_anonymous_memory() -> None:
    """Otherwise the first write after a fork moves this process to other pages than the device's."""
    memory = HostMapping(SIZE_BYTES, HostMemory.ANONYMOUS)
    contents(memory)[:] = 1
    lines = Path("/proc/self/smaps").read_text().splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith(f"{memory.address:x}-"))
    flags = next(line for line in lines[first:] if line.startswith("VmFlags:"))
    assert " dc" in flags
    memory.close()
