import json

from rich.console import Console

from aiokvoffload.cli.probe import Percentiles
from aiokvoffload.cli.report import ReplayReport


def report(**changes: object) -> ReplayReport:
    figures: dict[str, object] = {
        "trace": "t.jsonl",
        "device": "host",
        "policy": "lru",
        "concurrency": 16,
        "gpu_blocks": 100,
        "cpu_chunks": 50,
        "chunk_bytes": 16_384,
        "verify": True,
        "seconds": 2.0,
        "requests": 3,
        "blocks": 40,
        "served_blocks": 10,
        "stored_bytes": 4_000_000_000,
        "loaded_bytes": 1_000_000_000,
        "store_busy_s": 0.5,
        "load_busy_s": 2.0,
        "lag_us": Percentiles(1.0, 2.0, 3.0),
    }
    return ReplayReport(**{**figures, **changes})  # type: ignore[arg-type]


def rendered(shown: ReplayReport) -> str:
    console = Console(width=100, record=True, file=None, quiet=False)
    with console.capture() as capture:
        console.print(shown.table())
    return capture.get()


def test_the_json_has_the_measured_and_the_derived_figures() -> None:
    figures = json.loads(report().to_json())
    assert figures["hit_ratio"] == 0.25
    assert (figures["store_gbps"], figures["load_gbps"]) == (8.0, 0.5)
    assert figures["lag_us"] == {"p50": 1.0, "p99": 2.0, "max": 3.0}
    wanted = {"requests", "blocks", "verified_blocks", "mismatches", "failed_loads", "leaks", "manager_us_per_block"}
    assert wanted | {"loop_blocked_us", "device", "policy", "concurrency", "seconds"} <= figures.keys()


def test_mismatches_failed_loads_and_leaks_are_faults_and_evictions_are_not() -> None:
    assert report(short_loads=5, refused_blocks=7).ok
    assert not report(mismatches=1).ok
    assert not report(failed_loads=1).ok
    assert not report(leaks=1).ok


def test_nothing_replayed_divides_by_nothing() -> None:
    empty = report(blocks=0, served_blocks=0, store_busy_s=0.0, load_busy_s=0.0)
    assert (empty.hit_ratio, empty.store_gbps, empty.load_gbps) == (0.0, 0.0, 0.0)


def test_the_table_shows_the_figures_in_their_units() -> None:
    text = rendered(report())
    assert "0.2500 (10 blocks)" in text
    assert "4,000,000,000 B, 8.00 GB/s" in text
    assert "wake-up lag, µs (p50, p99, max)" in text
    assert "1, 2, 3" in text


def test_the_table_says_what_was_not_verified_and_what_the_host_cannot_tell() -> None:
    assert "not verified (--verify)" in rendered(report(verify=False))
    assert "not verified" not in rendered(report())
    assert "compete with the loop" in rendered(report())
    assert "compete with the loop" not in rendered(report(device="cuda"))


def test_the_table_describes_the_first_mismatch_if_there_is_one() -> None:
    assert "first mismatch" not in rendered(report())
    assert "line 2, block 0" in rendered(report(mismatches=1, first_mismatch="line 2, block 0"))


def test_one_of_something_is_in_the_singular() -> None:
    text = rendered(report(requests=1, blocks=1, served_blocks=1, cpu_chunks=1))
    for part in ("1 request, 1 block in", "(1 block)", "1 chunk of"):
        assert part in text
