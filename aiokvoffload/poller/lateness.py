"""How late alarms ring, by how long they were set for. Pure arithmetic.

A core that has been idle for longer sleeps deeper and takes longer to wake: ten microseconds after fifty, sixty after
two milliseconds.
"""

MOST_S = 0.0002
STEP_UP_S, STEP_DOWN_S = 2e-6, 1e-6
"""Up for each alarm that rings later, down for each that does not: this settles where two thirds do not."""
_OCTAVES = 24
_SHORTEST_S = 1e-6


class Lateness:
    """A quantile of the lateness for each octave of delays, tracked by steps of equal size, so strays do not matter."""

    __slots__ = ("_late_s",)

    def __init__(self) -> None:
        self._late_s = [0.0] * _OCTAVES

    def usual_s(self, delay_s: float) -> float:
        """How late an alarm usually is that is set for so long."""
        return self._late_s[_octave(delay_s)]

    def learn(self, delay_s: float, late_s: float) -> None:
        """One was so late."""
        octave = _octave(delay_s)
        step_s = STEP_UP_S if late_s > self._late_s[octave] else -STEP_DOWN_S
        self._late_s[octave] = min(MOST_S, max(0.0, self._late_s[octave] + step_s))

    def __repr__(self) -> str:
        return f"Lateness({[round(late_s * 1e6) for late_s in self._late_s]} µs)"


def _octave(delay_s: float) -> int:
    return min(_OCTAVES, max(1, int(delay_s / _SHORTEST_S).bit_length())) - 1
