"""Keys are looked at one by one or all at once, by how many there are, and the answer is the same."""

import pytest

from aiokvoffload.base import OffloadKey, make_offload_key
from aiokvoffload.cache.key_check import KeyCheck
from aiokvoffload.errors import ArgumentError

COUNTS = pytest.mark.parametrize("count", [1, 20, 21, 200])


def keys_of(count: int, *, num_groups: int = 1) -> list[OffloadKey]:
    return [make_offload_key(number.to_bytes(32, "big"), number % num_groups) for number in range(count)]


@COUNTS
@pytest.mark.parametrize("num_groups", [1, 2])
def test_keys_of_known_groups_are_taken(count: int, num_groups: int) -> None:
    check, keys = KeyCheck(num_groups), keys_of(count, num_groups=num_groups)
    check.require_keys(keys)
    check.require_keys([*keys, make_offload_key(b"of another length", 0)])


@COUNTS
@pytest.mark.parametrize("num_groups", [1, 2])
@pytest.mark.parametrize(
    "wrong",
    [
        bytes(3),
        bytes(4),
        bytes(35) + b"\2",
        bytes(32) + b"\0\0\1\0",
        bytes(32) + b"\0\1\0\0",
        bytes(32) + b"\1\0\0\0",
        bytearray(36),
        "x" * 36,
        None,
    ],
)
def test_the_first_that_is_no_key_of_a_known_group_is_named(count: int, num_groups: int, wrong: object) -> None:
    check, keys = KeyCheck(num_groups), keys_of(count, num_groups=num_groups)
    at = count // 2
    with pytest.raises(ArgumentError, match=rf"keys\[{at}\]"):
        check.require_keys([*keys[:at], wrong, *keys[at:], None])  # type: ignore[list-item]


def test_keys_too_short_are_refused_where_all_are_as_long_as_each_other() -> None:
    with pytest.raises(ArgumentError, match=r"keys\[0\]"):
        KeyCheck(1).require_keys([OffloadKey(bytes(4))] * 100)
