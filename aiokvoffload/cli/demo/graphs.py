"""Decode steps as CUDA graphs: a step is then one launch instead of a thousand, and Python is idle while it runs.

Launched operation by operation, a step waits for Python, and every thread that holds the interpreter lock meanwhile
makes it longer. Knows shapes of inputs; knows nothing of what a step computes.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch

from aiokvoffload.cli.demo.mapped import MappedNumbers, map_numbers

MAX_BLOCKS = 1 << 14
"""Of a table that is padded: beyond it the padding costs more than the launches."""
ROW_FACTOR = 4
"""From one number of rows that has graphs to the next."""


class Size(NamedTuple):
    """Rows of a step, and blocks of each."""

    rows: int
    blocks: int


def graph_size(rows: int, blocks: int) -> Size | None:
    """The next size that has a graph, or `None` for steps so large that padding them does not pay."""
    padded_rows, padded_blocks = 1, 8
    while padded_rows < rows:
        padded_rows *= ROW_FACTOR
    while padded_blocks < blocks:
        padded_blocks *= 2
    if padded_blocks * 3 // 4 >= blocks:
        padded_blocks = padded_blocks * 3 // 4
    return Size(padded_rows, padded_blocks) if padded_rows * padded_blocks <= MAX_BLOCKS else None


class _Captured(NamedTuple):
    graph: torch.cuda.CUDAGraph
    inputs: MappedNumbers
    chosen: MappedNumbers


class DecodeGraphs:
    """Captures a step the first time that its shape is asked for, and replays it from then on.

    Args:
        compute: a step, from one tensor of inputs to one of results, both on the device, for which it must not wait.
            It is called more than once for the inputs that are captured.
    """

    def __init__(self, compute: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._compute = compute
        self._captured: dict[torch.Size, _Captured] = {}
        self._pool = torch.cuda.graph_pool_handle()  # one for all: no two of them run at once

    def run(self, inputs: torch.Tensor) -> torch.Tensor:
        """What `compute` would return, on the host; known when the current stream has ended, until the next call.

        Args:
            inputs: on the host; the stream must have ended the call before.
        """
        if (captured := self._captured.get(inputs.shape)) is None:
            captured = self._captured[inputs.shape] = self._capture(inputs)
        captured.inputs.host.copy_(inputs)
        captured.graph.replay()
        return captured.chosen.host

    def _capture(self, example: torch.Tensor) -> _Captured:
        inputs, chosen = map_numbers(example.shape), map_numbers((len(example),))
        inputs.host.copy_(example)
        self._step(inputs, chosen)  # what libraries set up on first use cannot be captured
        graph = torch.cuda.CUDAGraph()
        # On a stream of its own, since others make the model's wait for their copies; and only this thread is bound by
        # what a capture forbids, since others go on copying.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            self._step(inputs, chosen)
        return _Captured(graph, inputs, chosen)

    def _step(self, inputs: MappedNumbers, chosen: MappedNumbers) -> None:
        chosen.gpu.copy_(self._compute(inputs.gpu.long()))

    def __repr__(self) -> str:
        return f"<DecodeGraphs {len(self._captured)} captured>"
