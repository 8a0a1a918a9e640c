"""How long a transfer will take, learned from those that have ended. Pure arithmetic: knows no clock and no device.

A time is thought of as a fixed part and a part for each byte. An observation says only how wrong their sum was, and
each part takes the share of the blame that it has in the sum: a short transfer teaches the fixed part, a long one the
rate, and a stream of equal transfers leaves their sum right without driving the parts apart, as least squares would.
Corrections are factors, so the parts stay above zero; they are bounded, so one stray observation moves little
(Huber's clipping, "Robust Estimation of a Location Parameter", 1964).
"""

import math
from typing import NamedTuple

FIRST_FIXED_S = 10e-6
FIRST_BYTES_PER_S = 25e9
"""Before anything is known: in the middle, on a logarithmic scale, of what buses and plain memory do."""
FIRST_RELATIVE_DEVIATION = 0.3
LEAST_GAIN = 0.125
"""How much of an observation is believed once many have been made: the last ten or so count."""
CLIP_DEVIATIONS = 3.0
LEAST_CLIP = 0.05
MARGIN_DEVIATIONS = 2.0
LEAST_SECONDS = 1e-7


class Forecast(NamedTuple):
    """What a transfer will take, in seconds, and how far off that usually is."""

    seconds: float
    spread_s: float


class _Affine:
    """A fixed part and a part for each byte, each corrected by its share in the sum."""

    __slots__ = ("_fixed", "_per_byte")

    def __init__(self, fixed: float, per_byte: float) -> None:
        self._fixed, self._per_byte = fixed, per_byte

    def at(self, size_bytes: int) -> float:
        return self._fixed + self._per_byte * size_bytes

    def correct(self, value: float, log_factor: float) -> None:
        """Move what was told as `value` by this factor, to the first order."""
        share = self._fixed / value
        log_factor /= share**2 + (1.0 - share) ** 2
        self._fixed *= math.exp(log_factor * share)
        self._per_byte *= math.exp(log_factor * (1.0 - share))


class TransferEstimator:
    """Latency and rate of one stream, and how much they vary."""

    __slots__ = ("_count", "_deviation", "_time")

    def __init__(self) -> None:
        self._time = _Affine(FIRST_FIXED_S, 1.0 / FIRST_BYTES_PER_S)
        self._deviation = _Affine(
            FIRST_RELATIVE_DEVIATION * FIRST_FIXED_S, FIRST_RELATIVE_DEVIATION / FIRST_BYTES_PER_S
        )
        self._count = 0

    @property
    def count(self) -> int:
        """How many transfers it has learned from."""
        return self._count

    def forecast(self, size_bytes: int) -> Forecast:
        """What a transfer of so many bytes will take."""
        return Forecast(self._time.at(size_bytes), MARGIN_DEVIATIONS * self._deviation.at(size_bytes))

    def learn(self, size_bytes: int, seconds: float) -> None:
        """A transfer took `seconds`, from its start on the device to its end."""
        expected_s, deviation_s = self._time.at(size_bytes), self._deviation.at(size_bytes)
        gain = max(LEAST_GAIN, 1.0 / (1 + self._count))
        log_error = math.log(max(LEAST_SECONDS, seconds) / expected_s)
        if self._count:
            clip = max(LEAST_CLIP, CLIP_DEVIATIONS * deviation_s / expected_s)
            log_error = min(clip, max(-clip, log_error))
        self._time.correct(expected_s, gain * log_error)
        self._count += 1
        if self._count > 1:  # the first says how wrong the guess was, not how transfers vary
            error_s = expected_s * abs(math.expm1(log_error))
            target_s = deviation_s + gain * (error_s - deviation_s)
            self._deviation.correct(deviation_s, math.log(max(LEAST_SECONDS, target_s) / deviation_s))

    def __repr__(self) -> str:
        rate = 1.0 / (self._time.at(1) - self._time.at(0)) / 1e9
        return f"TransferEstimator({self._time.at(0) * 1e6:.1f} µs + {rate:.1f} GB/s, {self._count} learned)"
