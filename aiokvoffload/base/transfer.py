"""What a stream, an event and a transfer promise."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from typing import Any, Protocol


class Event(Protocol):
    """A mark in a stream's order. `torch.Event` is one."""

    def query(self) -> bool:
        """Whether everything before the mark has ended; never waits."""
        ...

    def synchronize(self) -> None:
        """Block the calling thread until everything before the mark has ended."""
        ...


class Stream(Protocol):
    """A queue of device work in order. `torch.Stream` is one."""

    def record_event(self) -> Event:
        """Mark the end of what has been enqueued so far."""
        ...

    def wait_event(self, event: Any, /) -> None:
        """Make later work wait for `event`. An event not yet recorded is not waited for at all."""
        ...


@dataclass(frozen=True, slots=True)
class TransferResult:
    """How one job ended.

    Attributes:
        job_id: the number it was submitted under.
        success: whether every byte arrived.
        transfer_size: bytes that the job was to move.
        transfer_time: seconds from its start on the device to its end.
        failed_indices: positions, in the submitted chunks, of those that did not arrive; empty on success.
        error: what went wrong, for people.
    """

    job_id: int
    success: bool
    transfer_size: int
    transfer_time: float
    failed_indices: tuple[int, ...] = ()
    error: str = ""


class Transfer(ABC):
    """One accepted job. It ends exactly once, whoever awaits it or stops awaiting it (I1, I2).

    `await transfer` gives the `TransferResult` of every data outcome; it raises only `ModeError` and the waiter's own
    `CancelledError`, which detaches that waiter and nothing else.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def job_id(self) -> int:
        """The number it was submitted under."""

    @property
    @abstractmethod
    def result(self) -> TransferResult | None:
        """The result, or `None` while the job runs."""

    @abstractmethod
    def __await__(self) -> Generator[Any, None, TransferResult]: ...

    @abstractmethod
    async def fence(self, stream: Stream) -> None:
        """Return once `stream` has been made to wait, on the device, for the job's last copy; the host does not wait.

        It first waits until the copies are enqueued: a stream would not wait for an event that was not yet recorded.
        When it raises `TransferError`, the stream has been made to wait for what was enqueued all the same.

        Raises:
            ArgumentError: `stream` is no stream.
            TransferError: the job failed.
            AbandonedError: the job was given up by a close; its blocks are never free.
        """

    @property
    @abstractmethod
    def released(self) -> Awaitable[None]:
        """Resolves when the job touches its GPU blocks no more."""

    @abstractmethod
    def on_done(self, callback: Callable[[TransferResult], None]) -> None:
        """Call `callback(result)` once, on the consumer of completions, when the job ends; at once if it has."""

    @abstractmethod
    def on_released(self, callback: Callable[[], None]) -> None:
        """Call `callback()` once when the GPU blocks are free again; at once if they are."""
