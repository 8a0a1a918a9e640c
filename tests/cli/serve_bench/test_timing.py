"""How often a figure is measured."""

import pytest

from aiokvoffload.cli.serve_bench.timing import MOST_TIMES, SHORT_S, Repeater


class Clock:
    """Time passes while something is measured, and only then."""

    def __init__(self, seconds: float) -> None:
        self.now_s, self._seconds = 0.0, seconds

    async def measure(self) -> float:
        self.now_s += self._seconds
        return self.now_s


@pytest.mark.parametrize(
    ("seconds", "times", "patience_s", "expected"),
    [
        (SHORT_S / 100, 3, 6.0, MOST_TIMES),
        (SHORT_S / 5, 3, 6.0, 5),
        (2.0, 3, 6.0, 3),
        (4.0, 3, 6.0, 2),
        (8.0, 3, 6.0, 1),
        (SHORT_S / 100, 1, 6.0, 1),
    ],
)
async def test_what_is_short_is_measured_more_often_and_what_is_long_less(
    seconds: float, times: int, patience_s: float, expected: int
) -> None:
    clock = Clock(seconds)
    repeater: Repeater[float] = Repeater(times, patience_s, lambda: clock.now_s)
    assert len(await repeater.all(clock.measure)) == expected
