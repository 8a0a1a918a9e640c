"""The commands that look at disks: `inspect`, `bench disk`, `bench recovery`."""

import asyncio
import json
import os
import shutil
import sqlite3
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from aiokvoffload.cli import recovery_bench
from aiokvoffload.cli.app import app
from aiokvoffload.cli.fio import Fio
from aiokvoffload.tiering.disk.calls import DiskCalls, Step
from aiokvoffload.tiering.disk.layout import HEADER_BYTES
from aiokvoffload.tiering.disk.room import size_of
from tests.tiering.disk.rig import CHUNK_BYTES, disk_rig


@pytest.fixture
def filled(tmp_path: Path) -> tuple[Path, Path]:
    async def fill() -> None:
        async with disk_rig(tmp_path / "a", tmp_path / "b") as rig:
            await rig.store(*range(10))

    asyncio.run(fill())
    return tmp_path / "a", tmp_path / "b"


class FailingConnection:
    """Of an index on a full disk."""

    def execute(self, *_: object) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    def close(self) -> None:
        """There is nothing to close."""


def change_index(path: Path, statement: str) -> None:
    connection = sqlite3.connect(path / "index.sqlite3")
    connection.execute(statement)
    connection.commit()
    connection.close()


def contents_of(directories: Sequence[Path]) -> dict[Path, tuple[int, bytes]]:
    files = (path for directory in directories for path in directory.iterdir())
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


def invoke(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(map(str, arguments)), env={"COLUMNS": "200", "NO_COLOR": "1"})
    return result.exit_code, result.output


def test_inspect_says_what_is_there_how_much_and_since_when(filled: tuple[Path, Path]) -> None:
    status, output = invoke("inspect", filled[0], "--json", "-")
    found = json.loads(output)
    assert status == 0
    assert (found["namespace"], found["chunks"], found["payload_bytes"]) == ("tests", 10, 10 * CHUNK_BYTES)
    assert found["pools"] == [{"groups": [0], "chunk_bytes": CHUNK_BYTES, "chunks": 10, "slots": 40}]
    assert found["created_s"] - 1 <= found["first_stored_s"] <= found["last_stored_s"]
    assert found["verification"] is None


def test_inspect_verifies_every_chunk_and_changes_none(filled: tuple[Path, Path]) -> None:
    status, output = invoke("inspect", *filled, "--verify")
    assert status == 0
    assert "10, 0, 0" in output
    data = filled[1] / "chunks-0.data"
    before = bytearray(data.read_bytes())
    before[HEADER_BYTES + 5] ^= 1
    data.write_bytes(before)
    for _ in range(2):
        status, output = invoke("inspect", *filled, "--verify", "--json", "-")
        assert status == 1
        assert json.loads(output)["verification"] == {"right": 9, "corrupt": 1, "unreadable": 0}
    assert data.read_bytes() == bytes(before)


@pytest.mark.parametrize("mode", [0o500, 0o700])
def test_inspect_leaves_directories_as_they_are(filled: tuple[Path, Path], mode: int) -> None:
    """Those of a superuser can be written, whatever their mode says."""
    for directory in filled:
        directory.chmod(mode)
    before = contents_of(filled)
    for more in ((), ("--verify",)):
        assert invoke("inspect", *filled, *more)[0] == 0
        assert contents_of(filled) == before


@pytest.mark.parametrize("has_log_index", [True, False])
def test_inspect_reads_the_log_that_a_crash_has_left_and_leaves_it(tmp_path: Path, *, has_log_index: bool) -> None:
    """I5: what was committed is there, in whatever file."""

    class Crash(DiskCalls):
        def reached(self, step: Step) -> None:
            if step is Step.ROWS_COMMITTED and not (tmp_path / "crashed").exists():
                shutil.copytree(tmp_path / "running", tmp_path / "crashed")

    async def crash() -> None:
        async with disk_rig(tmp_path / "running", calls=Crash()) as rig:
            await rig.store(*range(10))

    asyncio.run(crash())
    crashed = tmp_path / "crashed"
    if not has_log_index:
        (crashed / "index.sqlite3-shm").unlink()
    for chunks in (10, 0):
        before = contents_of([crashed])
        status, output = invoke("inspect", crashed, "--verify", "--json", "-")
        found = json.loads(output)
        assert (status, found["chunks"], found["verification"]["right"]) == (0, chunks, chunks)
        assert contents_of([crashed]) == before
        (crashed / "index.sqlite3-wal").write_bytes(b"")  # without it there is nothing


def test_inspect_names_what_is_wrong_with_its_directories(filled: tuple[Path, Path], tmp_path: Path) -> None:
    assert invoke("inspect", tmp_path)[0] == 2
    status, output = invoke("inspect", filled[0], "--verify")
    assert (status, "one of 2 directories: name all" in output) == (2, True)
    status, output = invoke("inspect", *filled, tmp_path)
    assert (status, "one of 2 directories, 3 are named" in output) == (2, True)
    (filled[0] / "index.sqlite3").write_bytes(b"somebody's diary" * 100)
    status, output = invoke("inspect", filled[0])
    assert (status, "no index of this library" in output) == (2, True)


def test_a_file_that_has_gone_meanwhile_has_no_size(tmp_path: Path) -> None:
    """Whoever closes a tier while it is looked at takes the log of its index away."""
    (tmp_path / "index").write_bytes(b"four")
    assert (size_of(tmp_path / "index"), size_of(tmp_path / "index-wal")) == (4, 0)


@pytest.mark.parametrize("more", [(), ("--verify",)])
def test_a_disk_that_is_full_or_failing_is_no_reason_to_remove_an_index(
    filled: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...]
) -> None:
    """An index whose log wants memory that the disk has no room for is all right."""
    monkeypatch.setattr("aiokvoffload.tiering.disk.reading.connect", lambda *_, **__: FailingConnection())
    status, output = invoke("inspect", *filled, *more)
    assert (status, "make room on its disk" in output, "remove it" in output) == (2, True, False)


@pytest.mark.parametrize(
    "change",
    [
        "pool = 7",
        "pool = -1",
        "pool = x'00'",
        "slot = 'text'",
        "slot = x'00'",
        f"slot = {-(2**62)}",
        f"slot = {2**62}",
        "rank = 'text'",
        "rank = -1",
        f"rank = {2**62}",
        "key = 7",
        "key = 'text'",
        "key = zeroblob(300)",
        "checksum = 'text'",
        "checksum = CAST(x'80' AS TEXT)",
    ],
)
def test_a_damaged_row_is_counted_as_corrupt(filled: tuple[Path, Path], change: str) -> None:
    """It would be a miss to a tier; whoever looks must be told, and see the rest."""
    change_index(filled[0], f"UPDATE chunks SET {change} WHERE slot = 2")  # noqa: S608
    assert invoke("inspect", filled[0])[0] == 0
    status, output = invoke("inspect", *filled, "--verify", "--json", "-")
    assert status == 1
    assert json.loads(output)["verification"] == {"right": 9, "corrupt": 1, "unreadable": 0}


@pytest.mark.parametrize(
    "statement",
    [
        "DROP TABLE chunks",
        "UPDATE store SET created_s = 9e999",
        "UPDATE store SET description = CAST(x'80' AS TEXT)",
        "UPDATE store SET description = replace(description, '_directories\": 2', '_directories\": 0')",
        "UPDATE store SET description = replace(description, '\"tests\"', '7')",
        "UPDATE store SET description = replace(description, '8192', '-8192')",
    ],
)
def test_a_damaged_description_is_one_clear_line(filled: tuple[Path, Path], statement: str) -> None:
    change_index(filled[0], statement)
    for more in ((), ("--verify",)):
        status, output = invoke("inspect", *filled, *more)
        assert (status, "is damaged" in output, output.count("\n")) == (2, True, 1)


@pytest.mark.parametrize("size_bytes", [0, 50, 4096, 5000, 8192])
def test_a_truncated_index_is_one_clear_line(filled: tuple[Path, Path], size_bytes: int) -> None:
    with (filled[0] / "index.sqlite3").open("r+b") as file:
        file.truncate(size_bytes)
    for more in ((), ("--verify",)):
        status, output = invoke("inspect", *filled, *more)
        assert (status, output.count("\n")) == (2, 1)


def test_a_tier_in_use_can_be_inspected_and_not_verified(tmp_path: Path) -> None:
    committed = threading.Event()

    class Commit(DiskCalls):
        def reached(self, step: Step) -> None:
            if step is Step.ROWS_COMMITTED:
                committed.set()

    async def inspect() -> list[tuple[int, str]]:
        async with disk_rig(tmp_path, calls=Commit()) as rig:
            empty = await asyncio.to_thread(invoke, "inspect", tmp_path, "--json", "-")
            await rig.store(1, 2)
            # A store has ended when the bytes are written; their rows follow, in one transaction.
            assert await asyncio.to_thread(committed.wait, 20)
            before = set(os.listdir(tmp_path))
            ways = (("--json", "-"), ("--verify",))
            seen = [await asyncio.to_thread(invoke, "inspect", tmp_path, *more) for more in ways]
            assert set(os.listdir(tmp_path)) == before
            return [empty, *seen]

    empty, seen, (refused, why) = asyncio.run(inspect())
    assert [(status, json.loads(output)["chunks"]) for status, output in (empty, seen)] == [(0, 0), (0, 2)]
    assert (refused, "in use by process" in why) == (2, True)
    assert {path.name for path in tmp_path.iterdir()} == {"chunks-0.data", "index.sqlite3", "lock"}


@pytest.mark.parametrize("has_fio", [True, False])
def test_bench_disk_measures_the_tier_beside_fio(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_fio: bool
) -> None:
    if has_fio and not Fio.is_installed():
        pytest.skip("fio is not installed")
    monkeypatch.setattr(Fio, "is_installed", staticmethod(lambda: has_fio))
    options = ("--dir", tmp_path, "--bytes", "2MiB", "--chunk-bytes", "16KiB", "--threads", 2, "--repeat", 1)
    status, output = invoke("bench", "disk", *options, "--json", "-")
    assert status == 0
    figures = json.loads(output)["figures"]
    assert [figure["work"] for figure in figures] == ["store", "load", "mixed"]
    for figure in figures:
        assert figure["gbps"] > 0
        assert (figure["ratio"] is not None) == has_fio
    assert not list(tmp_path.iterdir())


async def test_bench_recovery_that_is_cancelled_writes_no_further(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A million rows take a minute, and Ctrl-C waited for all of them."""
    monkeypatch.setattr(recovery_bench, "_BATCH_ROWS", 100)
    began_s = time.perf_counter()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(recovery_bench.recovery_benchmark(directory=tmp_path, rows=200_000), 0.3)
    assert time.perf_counter() - began_s < 3
    assert not os.listdir(tmp_path)


def test_bench_recovery_knows_every_row_in_the_end(tmp_path: Path) -> None:
    status, output = invoke("bench", "recovery", "--dir", tmp_path, "--rows", 1000, "--json", "-")
    assert status == 0
    assert 0 < json.loads(output)["open_s"] <= json.loads(output)["recovered_s"]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--bytes", "900TiB"), "are free"),
        (("--chunk-bytes", "1001"), "multiples of 4096, got 1001"),
        (("--bytes", "1"), "at least 16 chunks"),
        (("--dir", "/nowhere"), "no such directory"),
    ],
)
def test_bench_disk_refuses_what_cannot_be_before_it_writes(
    tmp_path: Path, options: tuple[str, str], message: str
) -> None:
    """Above all it fills nobody's disk."""
    status, output = invoke("bench", "disk", "--dir", tmp_path, *options)
    assert (status, message in output) == (2, True)
    assert not list(tmp_path.iterdir())


def test_a_benchmark_of_disks_in_a_file_says_that_it_is_one(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    status, output = invoke("bench", "disk", "--dir", file)
    assert (status, "that is a file: name a directory" in output) == (2, True)


@pytest.mark.parametrize(
    ("options", "message"),
    [(("--rows", 10**14), "takes 500000000000000000 bytes"), (("--dir", "/nowhere"), "no such directory")],
)
def test_bench_recovery_refuses_what_cannot_be_before_it_writes(
    tmp_path: Path, options: tuple[str, object], message: str
) -> None:
    """It would write rows for hours first, or end in a number that is none to SQLite."""
    status, output = invoke("bench", "recovery", "--dir", tmp_path, *options)
    assert (status, message in output) == (2, True)
    assert not list(tmp_path.iterdir())


def test_a_replay_refuses_a_directory_without_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is what a shell makes of a variable that is not set, and would be the directory one is in."""
    monkeypatch.chdir(tmp_path)
    status, output = invoke("replay", "--disk-dir", "", "--disk-bytes", "64MiB", "--device", "host")
    assert (status, "a directory must have a name" in output) == (2, True)
    assert not list(tmp_path.iterdir())
