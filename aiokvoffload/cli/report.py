"""What a replay found, for people and for programs.

Knows figures and how they are shown; knows nothing of how they came about.
"""

import json
from dataclasses import asdict, dataclass, field

from rich.table import Table

from aiokvoffload.cli.probe import Percentiles
from aiokvoffload.cli.replay_disk import DiskFigures

HOST_REMARK = "on host, copies and kernels compete with the loop: its figures say little about a GPU machine"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayReport:
    """Figures of one replay; docs/cli.md says how each is measured.

    Attributes:
        trace: the trace file's name, or `sample`.
        device: where the GPU blocks lay, `cuda` or `host`.
        policy: name of the cache policy.
        concurrency: requests in service at a time.
        gpu_blocks: blocks in the paged pool.
        cpu_chunks: slots in CPU memory.
        chunk_bytes: bytes of one chunk, over all layers.
        verify: whether loaded blocks were compared.
        seconds: from the first request's arrival to the last one's end.
        requests: requests replayed.
        blocks: blocks of all their prompts.
        served_blocks: blocks that came from a cache instead of being computed.
        disk_blocks: those of them that had to be read from disk.
        verified_blocks: loaded blocks whose every byte was compared.
        mismatches: verified blocks with a wrong byte.
        first_mismatch: the first of them, described; empty if there is none.
        short_loads: loads that served less than their lookup promised; an eviction between is no fault.
        failed_loads: copies into GPU blocks that failed.
        failed_store_blocks: blocks whose store failed.
        refused_blocks: blocks that the library chose not to keep.
        leaks: blocks, pins, unfinished slots and transfers left after closing.
        stored_bytes: bytes copied from GPU blocks to CPU memory.
        loaded_bytes: bytes copied from CPU memory to GPU blocks.
        store_busy_s: seconds the device spent on the stores.
        load_busy_s: seconds the device spent on the loads.
        manager_us_per_block: microseconds inside the manager, per block of the trace, as this replay called it.
        manager_alone_us_per_block: the same for the trace's requests one after the other, with nothing else running.
        lag_us: microseconds from the end of a copy to the event loop knowing of it.
        loop_blocked_us: microseconds that a callback, posted from a thread, waited for the event loop.
        disk: what the disk did, if there was one.
    """

    trace: str
    device: str
    policy: str
    concurrency: int
    gpu_blocks: int
    cpu_chunks: int
    chunk_bytes: int
    verify: bool
    seconds: float
    requests: int
    blocks: int
    served_blocks: int
    disk_blocks: int = 0
    verified_blocks: int = 0
    mismatches: int = 0
    first_mismatch: str = ""
    short_loads: int = 0
    failed_loads: int = 0
    failed_store_blocks: int = 0
    refused_blocks: int = 0
    leaks: int = 0
    stored_bytes: int = 0
    loaded_bytes: int = 0
    store_busy_s: float = 0.0
    load_busy_s: float = 0.0
    manager_us_per_block: float = 0.0
    manager_alone_us_per_block: float = 0.0
    lag_us: Percentiles = field(default_factory=Percentiles)
    loop_blocked_us: Percentiles = field(default_factory=Percentiles)
    disk: DiskFigures | None = None

    @property
    def hit_ratio(self) -> float:
        """Served blocks, always a leading part of their request, over all blocks."""
        return self.served_blocks / self.blocks if self.blocks else 0.0

    @property
    def store_gbps(self) -> float:
        """Stored bytes while the device was storing, in 10**9 bytes per second."""
        return _gbps(self.stored_bytes, self.store_busy_s)

    @property
    def load_gbps(self) -> float:
        """Loaded bytes while the device was loading, in 10**9 bytes per second."""
        return _gbps(self.loaded_bytes, self.load_busy_s)

    @property
    def ok(self) -> bool:
        """Whether every byte was right, every load was served or fell to eviction, and nothing is left over."""
        return not (self.mismatches or self.failed_loads or self.leaks)

    def to_json(self) -> str:
        """One JSON object with every attribute and every derived figure."""
        derived = {
            "hit_ratio": self.hit_ratio,
            "store_gbps": self.store_gbps,
            "load_gbps": self.load_gbps,
            "ok": self.ok,
        }
        return json.dumps({**asdict(self), **derived}, indent=2)

    def table(self) -> Table:
        """The figures that people look at."""
        table = Table(
            title=f"{_counted(self.requests, 'request')}, {_counted(self.blocks, 'block')} in {self.seconds:.1f} s"
        )
        table.add_column("figure")
        table.add_column("value", justify="right")
        for name, value in self._rows():
            table.add_row(name, value)
        table.caption = "\n".join(self._remarks())
        return table

    def _remarks(self) -> list[str]:
        remarks = [f"first mismatch: {self.first_mismatch}"] if self.first_mismatch else []
        if self.device == "host":
            remarks.append(HOST_REMARK)
        return remarks

    def _rows(self) -> list[tuple[str, str]]:
        return [
            ("setup", f"{self.device}, {self.policy}, {self.concurrency} at a time"),
            ("CPU memory", f"{_counted(self.cpu_chunks, 'chunk')} of {self.chunk_bytes:,} B"),
            *self._disk_rows(),
            ("hit ratio", f"{self.hit_ratio:.4f} ({_counted(self.served_blocks, 'block')})"),
            ("stored", _traffic(self.stored_bytes, self.store_gbps)),
            ("loaded", _traffic(self.loaded_bytes, self.load_gbps)),
            ("verified blocks, mismatches", self._verdict()),
            ("failed loads", _fault(self.failed_loads)),
            ("leaks", _fault(self.leaks)),
            ("wake-up lag, µs (p50, p99, max)", _spread(self.lag_us)),
            ("loop blocked, µs (p50, p99, max)", _spread(self.loop_blocked_us)),
            (
                "manager, µs per block",
                f"{self.manager_us_per_block:.2f} (alone: {self.manager_alone_us_per_block:.2f})",
            ),
        ]

    def _disk_rows(self) -> list[tuple[str, str]]:
        if (disk := self.disk) is None:
            return []
        warm = _counted(disk.warm_chunks, "chunk")
        return [
            ("disk", f"{disk.bytes:,} B, warm: {warm} at the start, {disk.chunks:,} at the end"),
            ("disk stored, loaded, dropped", f"{disk.stored:,}, {disk.loaded:,}, {disk.dropped:,}"),
            ("disk corrupt, failed", f"{_fault(disk.corrupt)}, {_fault(disk.failed)}"),
            ("served from disk", _counted(self.disk_blocks, "block")),
        ]

    def _verdict(self) -> str:
        return f"{self.verified_blocks:,}, {_fault(self.mismatches)}" if self.verify else "not verified (--verify)"


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _gbps(size_bytes: int, seconds: float) -> float:
    return size_bytes / seconds / 1e9 if seconds else 0.0


def _traffic(size_bytes: int, gbps: float) -> str:
    return f"{size_bytes:,} B, {gbps:.2f} GB/s"


def _spread(samples: Percentiles) -> str:
    return f"{samples.p50:,.0f}, {samples.p99:,.0f}, {samples.max:,.0f}"


def _fault(count: int) -> str:
    return f"[bold red]{count:,}[/]" if count else "0"
