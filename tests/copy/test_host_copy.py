"""Fragments within this process: the kernel's way and the fallback move the same bytes."""

import numpy as np
import pytest

from aiokvoffload.copy import host_copy


@pytest.mark.parametrize("in_kernel", [True, False])
@pytest.mark.parametrize("count", [0, 1, 1024, 2500])
def test_every_fragment_arrives_and_nothing_else_changes(
    monkeypatch: pytest.MonkeyPatch, *, in_kernel: bool, count: int
) -> None:
    if not in_kernel:
        monkeypatch.setattr(host_copy, "_readv", None)
    random = np.random.default_rng(count)
    source = random.integers(0, 256, (2 * count + 1, 48), dtype=np.uint8)
    target = np.zeros_like(source)
    rows = random.permutation(2 * count + 1)[:count]
    sizes = random.integers(1, 49, count)
    host_copy.copy_fragments(target.ctypes.data + rows * 48, source.ctypes.data + rows * 48, sizes)
    expected = np.zeros_like(source)
    for row, size in zip(rows, sizes, strict=True):
        expected[row, :size] = source[row, :size]
    assert np.array_equal(target, expected)


def test_a_refused_call_falls_back_to_moving_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sandbox may forbid reading process memory, one's own included."""
    monkeypatch.setattr(host_copy, "_readv", lambda *_: -1)
    source, target = np.arange(64, dtype=np.uint8), np.zeros(64, dtype=np.uint8)
    address = np.array([source.ctypes.data, target.ctypes.data])
    host_copy.copy_fragments(address[1:], address[:1], np.array([64]))
    assert np.array_equal(source, target)
