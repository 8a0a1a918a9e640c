"""Sizes as people write them."""

import re

from aiokvoffload.errors import ArgumentError

_UNIT_BYTES = {"": 1, "b": 1} | {
    prefix + suffix: base**power
    for power, prefix in enumerate("kmgt", start=1)
    for suffix, base in (("", 1024), ("ib", 1024), ("b", 1000))
}
UNITS = "B, KB, MB, GB, TB, KiB, MiB, GiB or TiB"
MAX_SIZE_BYTES = 1 << 50
"""A PiB: more than a machine has, and far from what numbers of 64 bits hold."""
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Bytes in `text`: `16384`, `16KiB` and `16k` (1024 each), `2MB` (1000 each).

    Raises:
        ArgumentError: it is not a number and a unit, or not a whole number of bytes above zero, or above 1024TiB.
    """
    match = _SIZE.fullmatch(text)
    unit_bytes = _UNIT_BYTES.get(match[2].lower()) if match else None
    if match is None or unit_bytes is None:
        raise ArgumentError(f"size must be a number and a unit ({UNITS}), at most 1024TiB, got {text!r:.100}")
    size_bytes = float(match[1]) * unit_bytes
    if size_bytes > MAX_SIZE_BYTES:
        raise ArgumentError(f"size must be at most {MAX_SIZE_BYTES} bytes, 1024TiB, got {text!r:.100}")
    if size_bytes < 1 or size_bytes != int(size_bytes):
        raise ArgumentError(f"size must be a whole number of bytes above 0, got {text!r:.100}")
    return int(size_bytes)
