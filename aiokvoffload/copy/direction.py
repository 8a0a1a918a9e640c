"""The two ways bytes move."""

import enum


class Direction(enum.Enum):
    """A store reads GPU blocks and writes slots; a load reads slots and writes GPU blocks."""

    STORE = "store"
    """GPU to CPU."""
    LOAD = "load"
    """CPU to GPU."""
