"""Frozen configuration records, validated once, when they are made."""

import enum
import os
from collections.abc import Sequence
from dataclasses import dataclass

from aiokvoffload.errors import ConfigError

DEVICES = ("auto", "cuda", "host")
"""`auto` takes the accelerator that torch offers and falls back to `host`, which runs on CPU memory."""

PIN_LIMIT_BYTES = 64 << 30
"""Most bytes pinned in one call; 512 GiB in one call fails on CUDA 13."""

METRICS_PORT = 9464
"""Where figures are served and looked for unless another port is named."""

COPY_ENGINES = ("auto", "staged", "batched", "direct", "torch")
"""Ways of copying between blocks and slots; `auto` chooses for each transfer what this machine does fastest."""
MIN_STAGING_BYTES, MAX_STAGING_BYTES = 4 << 20, 64 << 30

MAX_NUMBER = (1 << 63) - 1
"""What is counted or weighed is at most this: containers and arrays take no more."""
MAX_SECONDS = 1_000_000_000
"""Thirty years, which every clock, timer and lock takes, as few take infinity."""
MAX_PENDING_EVENTS = 1 << 24
"""A bus has a place for each event that it keeps from the beginning, here 128 MiB."""
_SHOWN_BITS = 128


def require_positive(config: object, *names: str, whole: bool = True, most: int | None = None) -> None:
    """Check that these fields of `config` are numbers above 0 and not too large.

    Args:
        config: has the fields.
        names: of the fields.
        whole: whether only whole numbers will do.
        most: the largest that will; by default `MAX_NUMBER` of whole ones and `MAX_SECONDS` of others.

    Raises:
        ConfigError: one is not; the message names it.
    """
    kind, expected = ("a whole number", int) if whole else ("a number", int | float)
    limit = most or (MAX_NUMBER if whole else MAX_SECONDS)
    for name in names:
        value = getattr(config, name)
        # A bool is an int to Python; `not >` also refuses NaN, which compares false with everything.
        if isinstance(value, bool) or not isinstance(value, expected) or not value > 0:
            raise ConfigError(f"{type(config).__name__}.{name} must be {kind} above 0, got {shown(value)}")
        if value > limit:
            raise ConfigError(f"{type(config).__name__}.{name} must be at most {limit}, got {shown(value)}")


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_NUMBER


def shown(value: object) -> str:
    """A value as messages show it: a number of thousands of digits is one that Python refuses to write out."""
    if isinstance(value, int) and value.bit_length() > _SHOWN_BITS:
        return f"a number of {value.bit_length()} bits"
    return repr(value)


def are_all(records: object, kind: type) -> bool:
    """Whether these are several of a kind, in order, and at least one."""
    return isinstance(records, Sequence) and len(records) > 0 and all(isinstance(record, kind) for record in records)


def is_path(value: object) -> bool:
    """Whether it names a file or a folder, as text or a path: neither empty nor with a NUL in it."""
    path = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    return isinstance(path, str) and bool(path) and "\0" not in path


class Mode(enum.Enum):
    """The two ways to run; using the calls of the other one raises `ModeError`."""

    AWAITED = "awaited"
    """On a running event loop: the poller is the only consumer of completions."""
    STEPPED = "stepped"
    """Without a loop, from one plain thread: `get_finished()` is the only consumer of completions."""


class HostMemory(enum.Enum):
    """What kind of memory slots lie in."""

    ANONYMOUS = "anonymous"
    """This process's own."""
    MEMFD = "memfd"
    """A file in memory without a name: another process that is given its descriptor can map it. It is gone with the
    last process that has it, and counts as shared memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig:
    """One KV-cache group: what a chunk of it is.

    Attributes:
        blocks_per_chunk: consecutive GPU blocks that make one chunk.
        span: positions that one chunk covers, in a unit common to all groups (tokens, or the smallest chunk).
        window_chunks: for a sliding-window group, how many trailing chunks a hit needs; `None` needs the whole prefix.
        budget_weight: this group's part of the memory, relative to the others'; `None` means its bytes per position,
            so that every group holds about as many positions.

    Raises:
        ConfigError: a number is not positive, or above `MAX_NUMBER`.
    """

    blocks_per_chunk: int = 1
    span: int = 1
    window_chunks: int | None = None
    budget_weight: float | None = None

    def __post_init__(self) -> None:
        require_positive(self, "blocks_per_chunk", "span")
        if self.window_chunks is not None:
            require_positive(self, "window_chunks")
        if self.budget_weight is not None:
            require_positive(self, "budget_weight", whole=False, most=MAX_NUMBER)

    def chunks_at(self, position: int) -> range:
        """Indices of the chunks that a hit of `position` positions needs: the prefix, or the window at its end."""
        end = position // self.span
        return range(0 if self.window_chunks is None else max(0, end - self.window_chunks), end)


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyConfig:
    """How bytes get from GPU blocks to slots and back.

    Attributes:
        engine: `auto`; `staged` (a kernel gathers into a ring of GPU memory, DMA empties it, and back), `batched` (the
            driver copies fragment by fragment), `direct` (a kernel copies to and from pinned memory itself) or `torch`.
            One that this machine does not have is replaced by the next best.
        staging_bytes: most GPU memory for the rings of one worker, at most 64 GiB; 0 has none, and so no staged or
            direct copies.
        programs: of the gathering kernel, at most; fewer leave more of the GPU to the model and copy more slowly.
        turn_bytes: after so many bytes of a direction's copies, those of others in that direction come in between: a
            model's token on its way to the host would else wait for all of them. Fewer shorten its wait, 0.45 ms for
            32 MiB and 0.25 for 16, and cost half a percent of the rate at that; 0 never lets others in.
        calibration_file: where what this machine's copies cost is kept between processes; `None` measures anew.

    Raises:
        ConfigError: a field is out of its range.
    """

    engine: str = "auto"
    staging_bytes: int = 128 << 20
    programs: int = 132
    turn_bytes: int = 32 << 20
    calibration_file: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        require_positive(self, "programs")
        if self.engine not in COPY_ENGINES:
            raise ConfigError(f"engine must be one of {', '.join(COPY_ENGINES)}, got {self.engine!r}")
        if not _is_count(self.turn_bytes):
            wanted = f"0 or a whole number of at most {MAX_NUMBER}"
            raise ConfigError(f"CopyConfig.turn_bytes must be {wanted}, got {shown(self.turn_bytes)}")
        if self.staging_bytes != 0:
            require_positive(self, "staging_bytes", most=MAX_STAGING_BYTES)
            if self.staging_bytes < MIN_STAGING_BYTES:
                raise ConfigError(f"staging_bytes must be 0 or at least {MIN_STAGING_BYTES}, got {self.staging_bytes}")
        if self.calibration_file is not None and not is_path(self.calibration_file):
            raise ConfigError(f"CopyConfig.calibration_file must be a path or None, got {self.calibration_file!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CPUOffloadingConfig:
    """GPU and one tier of pinned CPU memory.

    Attributes:
        cpu_bytes: memory for chunks, over all workers together; slots are rows padded to whole pages.
        groups: one entry per KV-cache group, in group order.
        policy: name of the cache policy (see `aiokvoffload.registry`).
        store_threshold: a chunk is stored when it is offered for this many-th time; 1 stores at once.
        store_tracker_keys: most keys whose offers are counted when `store_threshold` is above 1.
        device: `auto`, `cuda` or `host`.
        host_memory: what kind of memory the slots lie in.
        pin_piece_bytes: memory given its pages and pinned in one go, in whole slots, at most 64 GiB: a service opens
            with one such piece of each pool. While one is pinned (a millisecond for 16 MiB), calls of the GPU's driver,
            the loop's too, wait for it; thousands of pieces cost more driver calls.
        copy: how bytes are copied.
        mode: awaited (a service on a loop) or stepped (manager and worker driven by a plain thread).
        close_timeout_s: how long a close waits for copies before it abandons them, in seconds; before that as long for
            the tiers below, four fifths of it for what is still to go down to them.
        max_run_keys: keys handled in one go; longer calls are cut into runs so that the loop stays free.
        max_run_fragments: fragments (one block in one tensor) that the loop itself enqueues in one go, for the same
            reason: those of a store that protects its source. All others are a submission thread's.
        max_jobs_in_flight: transfers submitted and not ended; later runs wait for room.
        max_waiting_transfers: loads and stores that wait for their turn; one more is refused with `BusyError`.
        max_pending_events: events a subscriber may lag behind, and the bus may keep for late subscribers; at most
            `MAX_PENDING_EVENTS`.
        event_block_timeout_s: how long new transfers wait for a subscriber that is slow and asked for that, in seconds.
        max_event_metadata: most keys that callers have attached something to, for events.

    Raises:
        ConfigError: a field is out of its range; the message names the field, the value and the limit.
    """

    cpu_bytes: int
    groups: tuple[GroupConfig, ...] = (GroupConfig(),)
    policy: str = "adaptive"
    store_threshold: int = 1
    store_tracker_keys: int = 64_000
    device: str = "auto"
    host_memory: HostMemory = HostMemory.ANONYMOUS
    pin_piece_bytes: int = 16 << 20
    copy: CopyConfig = CopyConfig()
    mode: Mode = Mode.AWAITED
    close_timeout_s: float = 30.0
    max_run_keys: int = 512
    max_run_fragments: int = 1024
    max_jobs_in_flight: int = 128
    max_waiting_transfers: int = 4096
    max_pending_events: int = 10_000
    event_block_timeout_s: float = 0.05
    max_event_metadata: int = 100_000

    def __post_init__(self) -> None:
        require_positive(
            self,
            *("cpu_bytes", "store_threshold", "store_tracker_keys", "pin_piece_bytes"),
            *("max_run_keys", "max_run_fragments", "max_jobs_in_flight", "max_waiting_transfers", "max_event_metadata"),
        )
        require_positive(self, "max_pending_events", most=MAX_PENDING_EVENTS)
        require_positive(self, "close_timeout_s", "event_block_timeout_s", whole=False)
        if not are_all(self.groups, GroupConfig):
            raise ConfigError(f"groups must be GroupConfig records, one for each KV-cache group, got {self.groups!r}")
        if not isinstance(self.policy, str):
            raise ConfigError(f"policy must be the name of a cache policy, got {self.policy!r}")
        if not isinstance(self.copy, CopyConfig):
            raise ConfigError(f"copy must be a CopyConfig, got {self.copy!r}")
        if not isinstance(self.mode, Mode):
            raise ConfigError(f"mode must be Mode.AWAITED or Mode.STEPPED, got {self.mode!r}")
        if self.pin_piece_bytes > PIN_LIMIT_BYTES:
            raise ConfigError(f"pin_piece_bytes must be at most {PIN_LIMIT_BYTES}, got {self.pin_piece_bytes}")
        if not isinstance(self.host_memory, HostMemory):
            raise ConfigError(f"host_memory must be HostMemory.ANONYMOUS or HostMemory.MEMFD, got {self.host_memory!r}")
        if self.device not in DEVICES:
            raise ConfigError(f"device must be one of {', '.join(DEVICES)}, got {self.device!r}")
