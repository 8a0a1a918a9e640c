"""The disk tier's configuration is checked when it is made."""

from typing import Any

import pytest

from aiokvoffload.errors import ConfigError
from aiokvoffload.tiering.disk.config import DiskConfig


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"directories": ()}, "directories must be a tuple of at least one path"),
        ({"directories": "/mnt/a"}, "directories must be a tuple of at least one path, got '/mnt/a'"),
        ({"directories": ("/mnt/a", "/mnt/b/../a")}, "directories must be distinct"),
        ({"disk_bytes": 0}, "disk_bytes must be a whole number above 0"),
        ({"namespace": ""}, "namespace must be text"),
        ({"threads": 0}, "threads must be a whole number above 0"),
        ({"verify": 1}, "verify must be True or False, got 1"),
        ({"close_timeout_s": -1}, "close_timeout_s must be a number above 0"),
        ({"max_pending_stores": 0}, "max_pending_stores"),
    ],
)
def test_a_wrong_field_is_named_with_its_value(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DiskConfig(**{"directories": ("/mnt/a",), "disk_bytes": 1 << 30, "namespace": "model", **fields})
