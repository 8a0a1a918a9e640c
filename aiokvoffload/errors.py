"""One tree of exceptions. Outcomes are values (a miss, a failed key); what is raised here is misuse or failure."""


class OffloadError(Exception):
    """Base of everything this library raises on purpose."""


class ConfigError(OffloadError, ValueError):
    """Raised when a configuration cannot work, or not on the memory given; names the field, the value, the limit."""


class ArgumentError(OffloadError, ValueError):
    """Raised when a call's argument is wrong, before any byte moves; names the argument, the value and the limit."""


class ModeError(OffloadError, RuntimeError):
    """Raised when a call belongs to the other way to run: *awaited* on an event loop, or *stepped* without one."""


class ClosedError(OffloadError):
    """Raised when something is used before it was opened or after this side closed it."""


class AbandonedError(OffloadError):
    """Raised when a close ran out of time: lists what was left running; its memory stays mapped for good."""


class BusyError(OffloadError):
    """Raised when a bound on what may wait is reached; what waits goes on, and the call may be repeated later."""


class LaggedError(OffloadError):
    """Raised when a subscription has ended because its reader was too slow; `after` is the last record it was given."""

    def __init__(self, message: str, after: int) -> None:
        super().__init__(message)
        self.after = after


class BrokenError(OffloadError):
    """Raised when the world failed underneath: the device is gone, or a thread the library lives on has died."""


class TierError(OffloadError):
    """Raised when a secondary tier cannot be used: says which, what is wrong with it, and what to do."""


class TransferError(OffloadError):
    """Raised when a fence is asked for keys that cannot be served; `failed_keys` names them."""

    def __init__(self, message: str, failed_keys: tuple[bytes, ...] = ()) -> None:
        super().__init__(message)
        self.failed_keys = failed_keys


class InternalError(OffloadError):
    """Raised when an invariant of this library does not hold; never the caller's fault, always worth a report."""
