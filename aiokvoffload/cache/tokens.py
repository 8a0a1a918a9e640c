"""Tokens: names for what a prepare promised, so that exactly that is released, and once."""

from typing import Generic, TypeVar

from aiokvoffload.errors import ArgumentError

Record = TypeVar("Record")


class TokenBook(Generic[Record]):
    """The open promises of one kind.

    Tokens rise by 2 from `first`, so one that was given and is settled is told from one never given, and from one of
    the other kind, without remembering any that is settled.

    Args:
        kind: which call gives these tokens, for error messages.
        first: 0 or 1.

    Attributes:
        epoch_start: tokens from here on were given since the last `begin_epoch`; to be read only.
    """

    __slots__ = ("_kind", "_next", "_open", "epoch_start")

    def __init__(self, kind: str, first: int) -> None:
        self._kind = kind
        self._next = self.epoch_start = first
        self._open: dict[int, Record] = {}

    def issue(self, record: Record | None) -> int:
        """A new token for `record`; `None` promises nothing and is settled from the start."""
        token = self._next
        self._next += 2
        if record is not None:
            self._open[token] = record
        return token

    def take(self, token: int) -> Record | None:
        """What was promised under `token`, which is settled by that; `None` if it was settled before.

        Raises:
            ArgumentError: the token was never given by this kind of call.
        """
        try:
            return self._open.pop(token)
        except (KeyError, TypeError):
            if not isinstance(token, int) or not 0 <= token < self._next or (self._next - token) % 2:
                raise ArgumentError(f"token must be one that {self._kind} gave, got {token!r}") from None
            return None

    def peek(self, token: int) -> Record | None:
        """What is still promised under `token`."""
        return self._open.get(token)

    def begin_epoch(self) -> None:
        """What was promised so far belongs to the past, though it is still to be settled."""
        self.epoch_start = self._next

    def open_records(self) -> list[Record]:
        """All promises not yet settled."""
        return list(self._open.values())

    def __len__(self) -> int:
        return len(self._open)

    def __repr__(self) -> str:
        return f"TokenBook({self._kind}, {len(self)} open)"
