"""How much of the loop's time may be spun away. Knows shares of time; knows nothing of what is waited for."""

SHARE = 0.15
SAVED_S = 0.0002


class SpinAllowance:
    """A share of all time, of which a little can be saved up (a token bucket). What is spent may exceed what is left.

    Args:
        share: of all time, that may be spent.
        saved_s: the most that can be saved up, in seconds.
    """

    __slots__ = ("_left_s", "_now_s", "_saved_s", "_share")

    def __init__(self, *, share: float = SHARE, saved_s: float = SAVED_S) -> None:
        self._share, self._saved_s = share, saved_s
        self._left_s, self._now_s = saved_s, 0.0

    def left_s(self, now_s: float) -> float:
        """What may be spent now."""
        self._left_s = min(self._saved_s, self._left_s + self._share * max(0.0, now_s - self._now_s))
        self._now_s = now_s
        return self._left_s

    def spend(self, seconds: float) -> None:
        """So much has been spent."""
        self._left_s -= min(seconds, 2 * self._saved_s)

    def __repr__(self) -> str:
        return f"SpinAllowance({self._share:.0%}, {self._left_s * 1e6:.0f} µs left)"
