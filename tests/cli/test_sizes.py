import pytest

from aiokvoffload.cli.sizes import parse_size
from aiokvoffload.errors import ArgumentError


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("1", 1),
        ("16384", 16_384),
        ("64B", 64),
        ("16KiB", 16_384),
        ("16k", 16_384),
        ("2MB", 2_000_000),
        ("2mib", 2 << 20),
        ("1.5 GiB", 3 << 29),
        ("1T", 1 << 40),
    ],
)
def test_sizes_read_as_people_write_them(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize("text", ["1025TiB", "99999999999999999999999TB", "9" * 400])
def test_a_size_beyond_every_machine_is_refused(text: str) -> None:
    assert parse_size("1024TiB") == 1 << 50
    with pytest.raises(ArgumentError, match="size must be at most 1125899906842624 bytes, 1024TiB, got") as caught:
        parse_size(text)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("text", ["", "KiB", "-1", "0", "0.5B", "1.3KiB", "1PiB", "1 2", "1e3", "nan", "16KiBs"])
def test_what_is_not_a_size_is_named(text: str) -> None:
    with pytest.raises(ArgumentError, match="size must be") as caught:
        parse_size(text)
    assert repr(text) in str(caught.value)


def test_who_writes_a_unit_that_there_is_not_is_told_all_and_the_limit() -> None:
    with pytest.raises(ArgumentError, match=r"unit \(B, KB, MB, GB, TB, KiB, MiB, GiB or TiB\), at most 1024TiB, got"):
        parse_size("2PiB")
