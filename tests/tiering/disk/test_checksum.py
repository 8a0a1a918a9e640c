"""A checksum is of one chunk, under one key, in one namespace."""

from aiokvoffload.testing.tier import tier_keys
from aiokvoffload.tiering.disk.checksum import CHECKSUM_BYTES, Checksummer

ONE, TWO = tier_keys(1, 2)


def views(*parts: bytes) -> list[memoryview]:
    return [memoryview(part) for part in parts]


def test_namespace_key_length_and_payload_all_count() -> None:
    """I5."""
    of_a = Checksummer("a")
    digests = [
        of_a.digest(ONE, views(b"payload")),
        Checksummer("b").digest(ONE, views(b"payload")),
        of_a.digest(TWO, views(b"payload")),
        of_a.digest(ONE, views(b"paylobd")),
        of_a.digest(ONE, views(b"payload\0")),
        of_a.digest(ONE, views(b"pay", b"load")),
        of_a.digest(ONE, views(b"load", b"pay")),
    ]
    assert len(set(digests)) == len(digests)
    assert {len(digest) for digest in digests} == {CHECKSUM_BYTES}


def test_it_means_the_same_in_every_process() -> None:
    """What is on disk was written by another one."""
    assert Checksummer("a").digest(ONE, views(b"payload")).hex() == "79b264c2a85bd110c4531ac69231b0d7"
