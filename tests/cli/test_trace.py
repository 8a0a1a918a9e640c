import json
from pathlib import Path

import pytest

from aiokvoffload.base import get_offload_block_hash, get_offload_group_idx
from aiokvoffload.cli.trace import TraceRequest, read_trace
from aiokvoffload.cli.traces import SAMPLE_TRACE
from aiokvoffload.errors import ArgumentError


def line(*hash_ids: object) -> str:
    return json.dumps({"timestamp": 0, "input_length": 9, "output_length": 1, "hash_ids": hash_ids})


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return tmp_path / "trace.jsonl"


def test_requests_come_in_file_order_with_their_line_numbers(trace: Path) -> None:
    trace.write_text(f"{line(0, 1)}\n\n{line()}\n")
    assert read_trace(trace) == [TraceRequest(1, (0, 1)), TraceRequest(3, ())]


def test_a_limit_reads_no_further_than_it_must(trace: Path) -> None:
    trace.write_text(f"{line(0)}\ngarbled")
    assert len(read_trace(trace, limit=1)) == 1


def test_equal_ids_make_equal_keys_and_keys_carry_the_group() -> None:
    first, second = TraceRequest(1, (7, 8)).keys(), TraceRequest(2, (7, 9)).keys()
    assert first[0] == second[0]
    assert first[1] != second[1]
    assert get_offload_block_hash(first[0]) == (7).to_bytes(8, "big")
    assert get_offload_group_idx(first[0]) == 0


@pytest.mark.parametrize(
    ("garbled", "reason"),
    [
        ("{", "not JSON"),
        ("[1]", "not a request"),
        ('{"hash_ids": 3}', "not a request"),
        ('{"timestamp": 0}', "not a request"),
        (line(-1), "got -1"),
        (line(2**63), "got 9223372036854775808"),
        (line(1.5), "got 1.5"),
        (line("a"), "got 'a'"),
        (line(True), "got True"),
        (line(3, 3), "repeats an id"),
        ("[" * 100_000, "nested too deeply"),
        ("1" * 5_000, "Exceeds the limit"),
    ],
)
def test_a_garbled_line_is_named_with_its_number(trace: Path, garbled: str, reason: str) -> None:
    trace.write_text(f"{line(0)}\n{garbled}\n")
    with pytest.raises(ArgumentError, match=r"trace\.jsonl, line 2: ") as caught:
        read_trace(trace)
    assert reason in str(caught.value)


def test_a_missing_file_a_folder_binary_data_and_an_empty_file_are_clear_errors(trace: Path) -> None:
    with pytest.raises(ArgumentError, match="cannot be read: No such file"):
        read_trace(trace)
    with pytest.raises(ArgumentError, match="cannot be read: Is a directory"):
        read_trace(trace.parent)
    trace.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ArgumentError, match="not UTF-8"):
        read_trace(trace)
    trace.write_text("\n\n")
    with pytest.raises(ArgumentError, match="holds no request"):
        read_trace(trace)
    trace.write_text(f"{line()}\n{line()}\n")
    with pytest.raises(ArgumentError, match="holds only empty prompts"):
        read_trace(trace)


def test_the_sample_trace_has_requests_that_share_prefixes() -> None:
    requests = read_trace(SAMPLE_TRACE)
    assert len(requests) == 300
    blocks = [hash_id for request in requests for hash_id in request.hash_ids]
    assert len(set(blocks)) < len(blocks) / 2
    assert SAMPLE_TRACE.stat().st_size < 150_000
    assert "Apache-2.0" in SAMPLE_TRACE.with_name("README.md").read_text()
